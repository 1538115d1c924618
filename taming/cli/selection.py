"""What the configuration of a run says about the images that `evaluate` measures."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from taming.cli.saved_config import config_of_run
from taming.evaluation.options import HeldOutPart

__all__ = ["notes_on_images"]

log = logging.getLogger("taming")

# settings of `data`: which images there are, and which of them are held out
IMAGES = ("_target_", "source._target_", "path", "root", "source.name", "source.split",
    "source.subfolder")  # fmt: skip
SPLIT = ("val_path", "val_fraction", "test_fraction", "source.val_split", "source.group",
    "source.labels", "source.num_val_images")  # fmt: skip


def notes_on_images(config: DictConfig, run_config: DictConfig, part: HeldOutPart) -> list[str]:
    """Returns on which images a model was selected, and warns if it may have seen those of `part`.

    A generator's tokenizer counts too.

    Args:
        config: the configuration of `evaluate`.
        run_config: that of the checkpoint's run, see `config_of_run`; empty without a run.
        part: the part that `evaluate` measures.
    """
    models = [("checkpoint", str(config.checkpoint), run_config)]
    if "vqgan" in run_config:
        path = str(run_config.vqgan)
        models.append(("tokenizer", path, config_of_run(path)))
    return [note for model in models for note in _notes(config, part, *model)]


def _notes(
    config: DictConfig, part: HeldOutPart, what: str, path: str, run_config: DictConfig
) -> Iterator[str]:
    if not run_config:
        yield (
            f"It is not known whether the {what} was trained or selected on these images, because "
            "the settings of its run are missing."
        )
        return
    same_images = not _differences(config, run_config, IMAGES)
    other_split = _differences(config, run_config, SPLIT)
    # images outside the training path cannot be among the training images
    outside = any(_value(config, name) for name in ("val_path", "source.val_split"))
    if same_images and other_split and not outside:
        note = (
            f"The run of the {what} held out other images "
            f"({', '.join(f'data.{name}={value}' for name, value in other_split.items())}). The "
            "numbers may be too good, because the model may have been trained on these images."
        )
        log.warning("note: %s", note)
        yield note
    if not _is_selected(path, run_config):
        return
    monitor = OmegaConf.select(run_config, "callbacks.best.monitor") or "a validation metric"
    selection = f"The {what} was selected by {monitor} on"
    if not same_images or other_split:
        yield (
            f"{selection} the validation images of its run. The numbers are too good if they are "
            "among these images."
        )
    elif part == "validation":
        yield (
            f"{selection} these images, so its numbers may be too good. Set data.test_fraction "
            "before the training to measure it on other images."
        )
    else:
        yield f"{selection} the validation images, and not on these."


def _differences(config: DictConfig, run_config: DictConfig, names: tuple[str, ...]) -> dict:
    """Returns the run's values of the settings in which `data` differs."""
    return {
        name: OmegaConf.select(run_config, f"data.{name}")
        for name in names
        if _value(config, name) != _value(run_config, name)
    }


def _value(config: DictConfig, name: str) -> Any:
    value = OmegaConf.select(config, f"data.{name}")
    is_path = value and name in ("path", "val_path", "root")
    return Path(value).expanduser().resolve() if is_path else value


def _is_selected(path: str, run_config: DictConfig) -> bool:
    """Returns whether a model is the best of its run, and not the last."""
    name = Path(path).name
    if name.endswith(".ckpt"):
        return name.startswith("best")
    return run_config.get("export") == "best"
