import logging
import signal
from collections import Counter
from itertools import combinations, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_data import data_module, equal, files, pair_files, write_pairs, zipped

from taming.data import Digits, EndlessBatches
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.runtime.errors import UserError


def module(path: Path, **settings: Any) -> ImageDataModule:
    of_source = ("val_path", "labels")
    source = files(path, **{name: settings.pop(name) for name in of_source if name in settings})
    defaults = {"batch_size": 4, "crop": "random", "crop_scale": (0.5, 1.0)}
    return data_module(source, **{**defaults, **settings})


def train_batches(data: ImageDataModule, count: int) -> list[dict[str, torch.Tensor]]:
    return list(islice(data.train_dataloader(), count))


def test_batches(make_folder: Any) -> None:
    data = module(make_folder({"cat": 8, "dog": 8}))
    before = torch.get_rng_state()
    (batch,) = train_batches(data, 1)
    assert batch["images"].shape == (4, 3, 16, 16)
    assert batch["labels"].dtype == torch.int64
    (val,) = data.val_dataloader()
    assert val["labels"].tolist() == [1, 0, 0, 1]  # mixed, the same way in every run
    assert torch.equal(val["images"][0], data.val_dataset[2]["images"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_workers_change_nothing_and_the_seed_does(make_folder: Any, kind: str) -> None:
    root = make_folder({"cat": 8, "dog": 8})
    root = zipped(root) if kind == "zip" else root
    one, several = (module(root, num_workers=n) for n in (0, 2))
    reference = train_batches(one, 6)
    assert equal(train_batches(several, 6), reference)
    assert equal(list(one.val_dataloader()), list(several.val_dataloader()))
    assert not equal(train_batches(module(root, seed=1), 6), reference)


class Handlers(torch.utils.data.Dataset[Any]):
    """The handlers of the stop signals in the process that loads an item."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)]


def test_loaders_ignore_the_signals_that_stop_a_training() -> None:
    (handlers,) = make_loader(Handlers(), 1, batch_size=None)
    assert handlers == [signal.SIG_IGN] * 3


def test_ranks_share_the_work(make_folder: Any) -> None:
    root = make_folder({"": 20})
    single = module(root, batch_size=8)
    ranks = []
    for rank in (0, 1):
        data = module(root, batch_size=4)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        ranks.append(data)
    (reference,) = train_batches(single, 1)
    halves = [train_batches(data, 1)[0]["images"] for data in ranks]
    assert torch.equal(torch.cat(halves), reference["images"])
    parts = [torch.cat([b["images"] for b in data.val_dataloader()]) for data in ranks]
    assert [len(part) for part in parts] == [3, 2]  # five, none twice
    expected = torch.stack([single.val_dataset[i]["images"] for i in (2, 3, 1, 4, 0)])
    assert torch.equal(torch.cat(parts), expected)


def test_val_path(make_folder: Any) -> None:
    train, val = make_folder({"cat": 3, "dog": 3}), make_folder({"dog": 2}, "val")
    data = module(train, val_path=val)
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert data.val_dataset.label(0) == 1
    assert data.class_names == ["cat", "dog"]


@pytest.mark.parametrize(
    ("path", "val_path"),
    [
        ("photos", "photos"),
        ("photos", "photos/cat/holdout"),
        ("photos/cat", "photos"),
        ("photos", "link"),
        ("photos.zip", "photos.zip"),
    ],
)
def test_validation_images_are_not_trained_on(
    make_folder: Any, tmp_path: Path, path: str, val_path: str
) -> None:
    root = make_folder({"cat": 3, "cat/holdout": 3, "dog": 3})
    zipped(root)
    (tmp_path / "link").symlink_to(root / "dog", target_is_directory=True)
    with pytest.raises(UserError, match=r"data\.val_path=.* are also in"):
        files(tmp_path / path, val_path=tmp_path / val_path, labels="none").open()


def test_validation_pairs_may_be_next_to_the_training_folders(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "pairs")
    data = data_module(pair_files(root, val_path=write_pairs(root / "val", 3, scale=2)))
    assert (len(data.train_dataset), len(data.val_dataset)) == (8, 3)


def test_a_single_image_is_trained_and_validated_on(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = module(make_folder({"": 1}) / "0.png")
    assert (len(data.train_dataset), len(data.val_dataset)) == (1, 1)
    assert "its metrics say nothing about new images" in caplog.text


def test_setup_happens_once_and_reports(make_folder: Any, caplog: pytest.LogCaptureFixture) -> None:
    root = make_folder({"cat": 6, "dog": 6})
    (root / "cat" / "0.png").write_bytes(b"gone")
    data = module(root, resolution=32)
    with caplog.at_level(logging.INFO, "taming"):
        data.setup()
        data.setup("fit")
    broken, summary = caplog.messages
    assert "1 of 12 images are broken and dropped (cat/0.png: " in broken
    assert "8 images to train and 3 to validate, 2 classes, 32x32, RGB; 11 smaller" in summary


@pytest.mark.parametrize(("share", "workers"), [(3, 3), (63, 8)])
def test_automatic_workers(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch, share: int, workers: int
) -> None:
    monkeypatch.setattr("taming.data.module.suggested_max_num_workers", lambda ranks: share)
    data = module(make_folder({"": 8}), num_workers="auto")
    assert data.num_workers_for(data.train_dataset) == workers
    in_memory = data_module(Digits(), resize="enlarge", crop="none", num_workers="auto")
    assert in_memory.num_workers_for(in_memory.train_dataset) == 0


def test_pairs_are_not_padded(pairs: Path) -> None:
    with pytest.raises(UserError, match="neither padded nor shifted"):
        data_module(pair_files(pairs), pad=1)


def first(num_batches: int, **settings: int) -> list[list[tuple[int, int]]]:
    batches = EndlessBatches(**{"num_items": 10, "batch_size": 4, "seed": 0, **settings})
    return list(islice(batches, num_batches))


def test_each_pass_holds_every_item_once_and_differs() -> None:
    stream = [pair for batch in first(10) for pair in batch]
    assert [draw for _, draw in stream] == list(range(40))
    passes = [[index for index, _ in stream[i : i + 10]] for i in range(0, 40, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


def test_the_order_is_a_function_of_seed_and_step() -> None:
    assert first(5, start_item=28) == first(12)[7:]
    assert first(3) != first(3, seed=1)


def test_another_number_of_processes_resumes_with_the_same_images(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folder({"": 20})
    interrupted, resumed = module(root, batch_size=2), module(root)
    step = {"global_step": 3, "accumulate_grad_batches": 1}  # in the middle of a pass
    interrupted.trainer = SimpleNamespace(**step, global_rank=0, world_size=2)  # type: ignore[assignment]
    resumed.load_state_dict(interrupted.state_dict())
    (note,) = caplog.messages
    assert "resumes with 1 instead of 2 processes" in note
    assert "A step takes 4 images instead of 4" in note
    assert equal(train_batches(resumed, 4), train_batches(module(root), 7)[3:])
    step["global_step"] += 2
    resumed.trainer = SimpleNamespace(**step, global_rank=0, world_size=1)  # type: ignore[assignment]
    assert resumed.state_dict()["next_item"] == 5 * 4


def test_resuming_with_other_images_warns(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted, resumed = module(make_folder({"": 20})), module(make_folder({"": 12}, "fewer"))
    step = {"global_step": 3, "accumulate_grad_batches": 1}
    interrupted.trainer = SimpleNamespace(**step, global_rank=0, world_size=1)  # type: ignore[assignment]
    interrupted.load_state_dict(interrupted.state_dict())
    assert caplog.messages == []
    resumed.load_state_dict(interrupted.state_dict())
    (note,) = caplog.messages
    assert "started with 15 training images, and there are 9 now" in note


def test_ranks_divide_the_stream_of_one_rank() -> None:
    ranks = [first(6, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    joined = [a + b for a, b in zip(*ranks, strict=True)]
    assert joined == first(6)  # two ranks of 2 see what one rank of 4 sees


def test_batches_larger_than_the_data() -> None:
    (batch,) = first(1, num_items=3, batch_size=8)
    assert sorted(index for index, _ in batch[:6]) == [0, 0, 1, 1, 2, 2]
    assert len(batch) == 8


def test_test_images_are_set_aside_first(make_folder: Any) -> None:
    root = make_folder({"cat": 20, "dog": 20})
    data = data_module(files(root, test_fraction=0.1))
    parts = [data.train_dataset, data.val_dataset, data.test_dataset]
    assert [len(part) for part in parts if part is not None] == [27, 9, 4]  # 0.25 of the rest
    names = [part.name(i) for part in parts if part is not None for i in range(len(part))]
    assert len(set(names)) == 40
    assert "27 images to train and 9 to validate, 4 set aside to test, 2 classes" in data.summary()
    # the same images as validation would get
    val = data_module(files(root, val_fraction=0.1)).val_dataset
    assert sorted(names[36:]) == sorted(val.name(i) for i in range(4))
    assert data_module(files(root)).test_dataset is None


def test_test_images_come_from_the_validation_path(make_folder: Any) -> None:
    root, val = make_folder({"": 6}), make_folder({"": 4}, "val")
    data = data_module(files(root, val_path=val, test_fraction=0.5))
    parts = data.train_dataset, data.val_dataset, data.test_dataset
    assert [len(part) for part in parts if part is not None] == [6, 2, 2]
    digits = data_module(Digits(test_fraction=0.1), resize="enlarge", crop="none")
    assert digits.test_dataset is not None and len(digits.test_dataset) == 180


def write_groups(root: Path, group: str = "{}") -> None:
    """Puts three images after each other into a group."""
    images = sorted(path.relative_to(root) for path in root.rglob("*.*"))
    rows = [f"{name},{group.format(i // 3)}" for i, name in enumerate(images)]
    (root / "metadata.csv").write_text("\n".join(["file_name,video", *rows]) + "\n")


def test_groups_stay_together(make_folder: Any) -> None:
    root = make_folder({"cat": 12, "dog": 12})
    write_groups(root)
    source = files(root, group="video", test_fraction=0.25, val_fraction=1 / 3)
    parts = source.open()
    groups = [{part.images.groups[i] for i in part.indices or ()} for part in parts]
    assert [len(part.indices or ()) for part in parts] == [12, 6, 6]  # two groups of each class
    assert sum(map(len, groups)) == len(set.union(*groups)) == 8


def test_a_group_on_both_sides_of_a_given_split(make_folder: Any) -> None:
    root, val = make_folder({"": 6}), make_folder({"": 3}, "val")
    write_groups(root)
    write_groups(val)
    with pytest.raises(UserError, match=r"1 groups have images in .*photos and in .*val \(0\)"):
        files(root, val_path=val, group="video").open()
    write_groups(val, "other {}")
    assert len(files(root, val_path=val, group="video").open()) == 2


def test_an_emoji_and_its_versions_are_on_one_side(shared: Path) -> None:
    path = shared / "data" / "emoji64.zip"
    kwargs: dict[str, Any] = {"val_fraction": 0.1, "test_fraction": 0.1, "check": "none"}

    def parts(**settings: Any) -> list[list[int]]:
        return [part.indices or [] for part in files(path, **kwargs, **settings).open()]

    images = files(path, group="emoji", check="none").open()[0].images
    together, apart = parts(group="emoji"), parts()
    emoji = [[{images.groups[i] for i in part} for part in split] for split in (together, apart)]
    assert [len(a & b) for a, b in combinations(emoji[0], 2)] == [0, 0, 0]
    assert min(len(a & b) for a, b in combinations(emoji[1], 2)) > 50  # what the column is for
    for indices, separate in zip(together[1:], apart[1:], strict=True):  # classes keep their shares
        counts = Counter(images.label(i) for i in indices)
        expected = Counter(images.label(i) for i in separate)
        assert all(abs(counts[label] - expected[label]) <= 4 for label in expected)
