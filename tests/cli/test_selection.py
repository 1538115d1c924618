"""On which images a model was selected, and whether it may have been trained on them."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from taming.cli.selection import notes_on_images


def config(**data: Any) -> DictConfig:
    return OmegaConf.create(
        {"checkpoint": "run", "data": {"path": "a", "val_fraction": 0.1, **data}}
    )


def run_config(export: str = "best", **data: Any) -> DictConfig:
    best = {"callbacks": {"best": {"monitor": "val/loss"}}, "export": export}
    return OmegaConf.merge(config(**data), best)


ON_THESE = "selected by val/loss on these images, so its numbers may be too good. Set data.test_f"
NOT_ON_THESE = "selected by val/loss on the validation images, and not on these"
ELSEWHERE = "selected by val/loss on the validation images of its run. The numbers are too good if"
TRAINED = "held out other images"


@pytest.mark.parametrize(
    ("run_data", "data", "part", "expected"),
    [
        ({}, {}, "validation", [ON_THESE]),
        ({}, {"test_fraction": None}, "validation", [ON_THESE]),  # a run of an earlier version
        ({"test_fraction": 0.1}, {"test_fraction": 0.1}, "test", [NOT_ON_THESE]),
        ({"test_fraction": 0.1}, {"test_fraction": 0.1}, "validation", [ON_THESE]),
        ({}, {"path": Path("a").absolute()}, "validation", [ON_THESE]),
        ({}, {"path": "b"}, "validation", [ELSEWHERE]),
        ({}, {"test_fraction": 0.1}, "test", [TRAINED, ELSEWHERE]),
        ({}, {"source": {"group": "video"}}, "validation", [TRAINED, ELSEWHERE]),
        ({}, {"val_path": "b"}, "validation", [ELSEWHERE]),  # images outside data.path
        ({"export": "last"}, {}, "validation", []),
        ({"export": "last"}, {"val_fraction": 0.2}, "validation", [TRAINED]),
    ],
)
def test_notes(run_data: dict[str, Any], data: dict[str, Any], part: Any, expected: list) -> None:
    notes = notes_on_images(config(**data), run_config(**run_data), part)
    assert len(notes) == len(expected)
    assert all(part in note for part, note in zip(expected, notes, strict=True)), notes


@pytest.mark.parametrize(
    ("checkpoint", "export", "count"),
    [
        ("run/checkpoints/best.ckpt", "last", 1),
        ("run/checkpoints/last.ckpt", "best", 0),
        ("run/model", "best", 1),
        ("run/model", "last", 0),
    ],
)
def test_the_checkpoint_of_a_run(checkpoint: str, export: str, count: int) -> None:
    settings = OmegaConf.merge(config(), {"checkpoint": checkpoint})
    assert len(notes_on_images(settings, run_config(export), "validation")) == count


def test_the_tokenizer_of_a_generator_counts_too(tmp_path: Path) -> None:
    OmegaConf.save(run_config(), tmp_path / "config.yaml")
    generator = OmegaConf.merge(run_config("last"), {"vqgan": str(tmp_path)})
    (note,) = notes_on_images(config(), generator, "validation")
    assert f"The tokenizer was {ON_THESE}" in note
    generator.vqgan = "nowhere"
    (note,) = notes_on_images(config(), generator, "test")
    assert "not known whether the tokenizer was trained or selected on these images" in note
