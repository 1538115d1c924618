import inspect
import logging
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from taming.data import ImageDataModule, sets
from taming.data.sets import digits, image_folder
from taming.errors import MissingPathError, UserError

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "data"


def module(path: Path, **settings: Any) -> ImageDataModule:
    defaults = {
        "resolution": 16,
        "batch_size": 4,
        "val_fraction": 0.25,
        "crop": "random",
        "crop_scale": (0.5, 1.0),
        "num_workers": 0,
    }
    return image_folder(path, **{**defaults, **settings})


def train_batches(data: ImageDataModule, count: int) -> list[dict[str, torch.Tensor]]:
    return list(islice(data.train_dataloader(), count))


def equal(first: list[dict[str, torch.Tensor]], second: list[dict[str, torch.Tensor]]) -> bool:
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in zip(first, second, strict=True)
    )


def test_batches(make_folder: Any) -> None:
    data = module(make_folder({"cat": 8, "dog": 8}))
    (batch,) = train_batches(data, 1)
    assert batch["images"].shape == (4, 3, 16, 16)
    assert batch["labels"].dtype == torch.int64
    val = list(data.val_dataloader())
    assert [len(b["images"]) for b in val] == [4]
    assert torch.cat([b["labels"] for b in val]).tolist() == [0, 0, 1, 1]
    assert torch.equal(val[0]["images"][2], data.val_dataset[2]["images"])


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_workers_change_nothing(make_folder: Any, kind: str) -> None:
    root = make_folder({"cat": 8, "dog": 8})
    if kind == "zip":
        root = Path(shutil.make_archive(str(root), "zip", root))
    alone, helped = (module(root, num_workers=n) for n in (0, 2))
    assert equal(train_batches(alone, 6), train_batches(helped, 6))
    assert equal(list(alone.val_dataloader()), list(helped.val_dataloader()))


def test_same_seed_same_batches_and_a_later_start(make_folder: Any) -> None:
    root = make_folder({"": 12})
    reference = train_batches(module(root), 6)
    assert equal(train_batches(module(root), 6), reference)
    assert not equal(train_batches(module(root, seed=1), 6), reference)
    resumed = module(root)
    resumed.start_batch = 4
    assert equal(train_batches(resumed, 2), reference[4:])


def test_loading_leaves_torchs_random_numbers_alone(make_folder: Any) -> None:
    data = module(make_folder({"": 12}))
    data.setup()
    before = torch.get_rng_state()
    train_batches(data, 2)
    list(data.val_dataloader())
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_share_the_work(make_folder: Any) -> None:
    root = make_folder({"": 20})
    alone = module(root, batch_size=8)
    ranks = []
    for rank in (0, 1):
        data = module(root, batch_size=4)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        ranks.append(data)
    (reference,) = train_batches(alone, 1)
    halves = [train_batches(data, 1)[0]["images"] for data in ranks]
    assert torch.equal(torch.cat(halves), reference["images"])
    parts = [torch.cat([b["images"] for b in data.val_dataloader()]) for data in ranks]
    assert [len(part) for part in parts] == [3, 2]  # five, none twice
    expected = torch.stack([alone.val_dataset[i]["images"] for i in (0, 2, 4, 1, 3)])
    assert torch.equal(torch.cat(parts), expected)


def test_val_path(make_folder: Any) -> None:
    train, val = make_folder({"cat": 3, "dog": 3}), make_folder({"dog": 2}, "val")
    data = module(train, val_path=val)
    assert (len(data.train_dataset), len(data.val_dataset)) == (6, 2)
    assert data.val_dataset.label(0) == 1
    assert data.val_dataset.class_names == ["cat", "dog"]
    with pytest.raises(UserError, match="fox is not a class of the training data, which has cat"):
        module(train, val_path=make_folder({"fox": 2}, "odd")).setup()
    with pytest.raises(MissingPathError, match=r"data\.val_path"):
        module(train, val_path=train / "nowhere").setup()


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
    shutil.make_archive(str(root), "zip", root)
    (tmp_path / "link").symlink_to(root / "dog", target_is_directory=True)
    with pytest.raises(UserError, match=r"data\.val_path=.* are also in data\.path=.*Move them"):
        module(tmp_path / path, val_path=tmp_path / val_path, labels="none").setup()


def test_validation_pairs_may_lie_beside_the_folders_that_are_read(make_folder: Any) -> None:
    root = make_folder({"image": 3, "val/image": 2})
    for folder in ("", "val"):
        shutil.copytree(root / folder / "image", root / folder / "label")
    data = sets.paired(
        root, val_path=root / "val", condition="image", resolution=16, batch_size=2, num_workers=0
    )
    assert (len(data.train_dataset), len(data.val_dataset)) == (3, 2)


def test_a_single_image_is_trained_and_validated_on(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = module(make_folder({"": 1}))
    data.setup()
    assert (len(data.train_dataset), len(data.val_dataset)) == (1, 1)
    assert "its numbers say nothing about new ones" in caplog.text


def test_mistakes_are_found_at_set_up(make_folder: Any, tmp_path: Path) -> None:
    root = make_folder({"": 4})
    with pytest.raises(MissingPathError, match="does not exist"):
        module(tmp_path / "nowhere").setup()
    for settings, message in (
        ({"channels": 4}, "channels is 4"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": "many"}, "num_workers is many"),
        ({"seed": -1}, "seed is -1"),
        ({"background": [0, 0]}, "background is"),
    ):
        with pytest.raises(UserError, match=message):
            module(root, **settings)


def test_set_up_happens_once_and_reports(
    make_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folder({"cat": 6, "dog": 6})
    (root / "cat" / "0.png").write_bytes(b"gone")
    data = module(root)
    with caplog.at_level(logging.INFO, "taming"):
        data.setup()
        first = data.train_dataset
        data.setup("fit")
    assert data.train_dataset is first
    assert len(caplog.messages) == 2  # the broken file, the summary
    first_line, second_line = data.summary().split("\n")
    assert "8 images to train and 3 to validate, 2 classes, 16x16, RGB" in first_line
    assert second_line == "1 broken files (cat/0.png) left out"
    (root / "cat" / "0.png").unlink()
    assert "\n" not in module(root).summary()  # nothing to say


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (4, 3), (64, 8)])
def test_automatic_workers(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr("taming.data.module.num_cores", lambda: cores)
    data = module(make_folder({"": 8}), num_workers="auto")
    assert data.num_workers_for(data.train_dataset) == workers
    in_memory = digits(batch_size=4)
    assert in_memory.train_dataloader().num_workers == 0


@pytest.mark.parametrize(
    "name", ["image_folder", "label_maps", "digits", "fashion_mnist", "cifar10"]
)
def test_configs_build_and_name_every_setting(name: str, tmp_path: Path) -> None:
    config = OmegaConf.create({"seed": 3, "data": OmegaConf.load(CONFIGS / f"{name}.yaml")})
    missing = {"image_folder": {"path": str(tmp_path)}}
    missing["label_maps"] = {"path": str(tmp_path), "channels": 12}
    assert OmegaConf.missing_keys(config) == {f"data.{key}" for key in missing.get(name, {})}
    config.data.update(missing.get(name, {}))
    built = instantiate(config.data, _convert_="all")
    assert isinstance(built, ImageDataModule)
    assert built.seed == 3
    settings = inspect.signature(getattr(sets, name)).parameters
    assert set(settings) == set(config.data) - {"_target_"}
    with pytest.raises(Exception, match="unexpected keyword argument 'horizontal_flop'"):
        instantiate({**config.data, "horizontal_flop": True}, _convert_="all")
