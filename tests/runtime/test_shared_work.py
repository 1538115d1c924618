"""Two processes share the work of a command, and write what one does."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_images import write_picture
from tiny_models import tiny_generator
from torch import multiprocessing
from two_processes import in_two

from taming.conditioning import ClassLabel
from taming.data import (
    ImageFiles,
    ImageFolder,
    ImageTransform,
    LoaderOptions,
    PictureReader,
    token_writer,
)
from taming.data.module import ImageDataModule
from taming.evaluation import ClassifierTraining, FeatureNetwork
from taming.evaluation.evaluate import evaluate_model
from taming.evaluation.options import EvaluationOptions
from taming.evaluation.reconstruct import reconstruct_images
from taming.generation import ImageGenerator, SamplingOptions
from taming.generation.sample import sample_images
from taming.runtime.process_group import (
    gather,
    gather_in_order,
    largest_share,
    on_first_rank,
    rank,
    rank_share,
)
from taming.tokenizer import VQGAN
from taming.training.encode_dataset import encode_dataset
from taming.training.processes import set_up_data

pytestmark = pytest.mark.slow

OPTIONS = SamplingOptions(seed=0, batch_size=4)


def write_classes(folder: Path) -> None:
    """Eleven pictures of one class, ten of another, all 16×16, and a file that is broken.

    Almost all are in both classes, so that held-out images are near-duplicates of training images.
    """
    for number in range(21):
        write_picture(folder / "ab"[number % 2] / f"{number:02d}.png", seed=number // 2)
    (folder / "a" / "broken.png").write_bytes(b"none")
    cut = folder.parent / "cut"  # one whole file, and seven that end after their headers
    shutil.copytree(folder / "a", cut, ignore=shutil.ignore_patterns("broken.png"))
    for path in sorted(cut.iterdir())[1:8]:
        path.write_bytes(path.read_bytes()[:100])
    for path in sorted(cut.iterdir())[8:]:
        path.unlink()


def generator() -> ImageGenerator:
    return tiny_generator(ClassLabel(2, class_names=["a", "b"]), (8, 8))


def data(folder: Path) -> ImageDataModule:
    source = ImageFiles(path=folder / "images", reader=PictureReader(), val_fraction=0.3)
    transform = ImageTransform(resolution=16, resize="shorter_side", crop="random")
    module = ImageDataModule(source, transform, LoaderOptions(4, num_workers=0))
    set_up_data(module)
    return module


def encode(folder: Path, output: Path, **changes: Any) -> None:
    settings: dict[str, Any] = {"num_views": 2, "batch_size": 4, "num_workers": 0}
    settings |= {"device": torch.device("cpu"), **changes}
    tokens = encode_dataset(
        generator().require_tokenizer(), data(folder).train_dataset, output, **settings
    )
    assert len(tokens) == 15  # every rank has it


def encode_and_count(folder: str, output: str, kill_at: int | None, start: Any, count: Any) -> None:
    """Encodes; adds to `count` how many items; kills itself at a batch, if that is given."""
    token_writer.SHARD_ITEMS = 4
    torch.set_num_threads(1)
    encode_images, num_batches = VQGAN.encode, 0

    def encode_counted(self: VQGAN, images: torch.Tensor) -> torch.Tensor:
        nonlocal num_batches
        if num_batches < 2:  # so each has two shards
            start.wait()
        if num_batches == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        num_batches += 1
        with count.get_lock():
            count.value += len(images)
        return encode_images(self, images)

    VQGAN.encode = encode_counted
    encode(Path(folder), Path(output))


def encode_at_once(
    folder: Path, output: Path, kills: list[int | None]
) -> tuple[list[int | None], int]:
    """Has processes encode; returns their exit statuses and how many items they have encoded."""
    context = multiprocessing.get_context("spawn")
    start, count = context.Barrier(len(kills)), context.Value("i", 0)
    processes = [
        context.Process(target=encode_and_count, args=(f"{folder}", f"{output}", at, start, count))
        for at in kills
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    return [process.exitcode for process in processes], count.value


def sample(folder: Path, output: Path) -> None:
    sample_images(generator(), output, options=OPTIONS, num_images=11, write_images=True)


def sample_one(folder: Path, output: Path) -> None:
    options = SamplingOptions(seed=0, compile="auto")
    sample_images(generator(), output, options=options, num_images=1)


def evaluate(folder: Path, output: Path) -> None:
    training = ClassifierTraining(num_steps=2, base_channels=4, batch_size=4)
    options = EvaluationOptions(num_samples=9, sampling=OPTIONS, classifier_training=training)
    evaluate_model(generator(), data(folder), output, options, features=Features())


class Features(FeatureNetwork):
    """Means of the channels."""

    num_features = 3
    description = "means"
    digest = "none"

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def reconstruct(folder: Path, output: Path) -> None:
    reconstruct_images(
        generator().require_tokenizer(), folder / "images", output, batch_size=4, write_images=True
    )


def reconstruct_cut(folder: Path, output: Path) -> None:
    reconstruct_images(generator().require_tokenizer(), folder / "cut", output, batch_size=4)


def do_all(folder: Path, name: str = "two") -> dict[str, Any]:
    token_writer.SHARD_ITEMS = 4
    folders = 0
    init = ImageFolder.__init__

    def counting(*args: Any, **kwargs: Any) -> None:
        nonlocal folders
        folders += 1
        init(*args, **kwargs)

    ImageFolder.__init__ = counting
    commands: list[Callable[[Path, Path], None]] = [
        encode, sample, sample_one, evaluate, reconstruct, reconstruct_cut,
    ]  # fmt: skip
    try:
        for command in commands:
            command(folder, folder / name / command.__name__)
    finally:
        ImageFolder.__init__ = init
    return {
        "folders": folders,
        "rank_share": list(rank_share(range(5))),
        "largest_share": largest_share(5),
        "in_turn": list(gather_in_order((10 * item for item in rank_share(range(5))), 5)),
        "gathered": gather(rank()),
        "from_first": on_first_rank(rank),
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Where one process and two have done the same, and what each of the two knows."""
    folder = tmp_path_factory.mktemp("shared")
    write_classes(folder / "images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_writer, "SHARD_ITEMS", 4)  # `do_all` sets it in its processes
        do_all(folder, "one")
    # a single process is killed at its third shard, and two go on
    assert encode_at_once(folder, folder / "two" / "encode", [2]) == ([-signal.SIGKILL], 8)
    return folder, in_two(do_all, folder)


@pytest.fixture
def folder(done: tuple[Path, Any]) -> Path:
    return done[0]


def files(directory: Path) -> dict[str, Path]:
    """The files below a directory."""
    return {
        str(path.relative_to(directory)): path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize(
    "command", ["encode", "sample", "sample_one", "evaluate", "reconstruct", "reconstruct_cut"]
)
def test_two_processes_write_what_one_does(folder: Path, command: str) -> None:
    one, two = (files(folder / name / command) for name in ("one", "two"))
    assert one.keys() == two.keys() and len(one) > 1
    assert ("near_duplicates.csv" in one) == (command == "evaluate")
    for name, path in one.items():
        if name == "metrics.json":
            same(json.loads(path.read_text()), json.loads(two[name].read_text()))
        elif name.endswith((".npz", ".safetensors")):
            continue
        else:
            assert path.read_bytes() == two[name].read_bytes(), name
    if command.startswith("sample"):
        with np.load(one["samples.npz"]) as first, np.load(two["samples.npz"]) as second:
            for name in ("arr_0", "arr_1"):
                np.testing.assert_array_equal(first[name], second[name])


def test_separate_processes_share_an_encoding(folder: Path) -> None:
    """Three are at it, one of which is killed at its second shard, and each shard is made once."""
    statuses, num_items = encode_at_once(folder, folder / "three" / "encode", [None, 1, None])
    assert statuses == [0, -signal.SIGKILL, 0] and num_items == 30
    one, three = (files(folder / name / "encode") for name in ("one", "three"))
    assert one.keys() == three.keys()
    assert all(path.read_bytes() == three[name].read_bytes() for name, path in one.items())


def same(one: Any, two: Any) -> None:
    """Equal up to the order in which numbers are added up."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for name in one:
            same(one[name], two[name])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for first, second in zip(one, two, strict=True):
            same(first, second)
    elif isinstance(one, float):
        assert two == pytest.approx(one, rel=1e-6, abs=1e-9)
    else:
        assert one == two


def test_a_process_without_an_image_does_not_disturb_the_other(folder: Path) -> None:
    actual = json.loads((folder / "two" / "reconstruct_cut" / "metrics.json").read_text())
    assert actual["num_images"] == 1
    assert [name for name, _ in actual["broken"]] == [f"{n:02d}.png" for n in range(2, 16, 2)]


def test_the_first_process_lists_images_and_shares_are_gathered_in_order(done: Any) -> None:
    _, (one, other) = done
    assert (one["folders"], other["folders"]) == (4, 0)
    assert (one["rank_share"], other["rank_share"]) == ([0, 2, 4], [1, 3])
    assert one["largest_share"] == other["largest_share"] == 3
    assert (one["in_turn"], other["in_turn"]) == ([0, 10, 20, 30, 40], [])
    assert (one["gathered"], other["gathered"]) == ([0, 1], [])
    assert one["from_first"] == other["from_first"] == 0
