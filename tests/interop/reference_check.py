"""Loads reference checkpoints; `pytest tests/interop -k reference -sv` prints the errors."""

import copy
from pathlib import Path
from typing import Any

import largest_error
import torch
from foreign_keys import Shapes
from omegaconf import OmegaConf
from safetensors.torch import load_file

from taming.interop import SOURCES, Imported, import_checkpoint
from taming.serialization import read_foreign_checkpoint

TOLERANCE = 1e-4  # of the reference; float32 gives about 1e-5


def read_config(path: Path) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return {str(name): value for name, value in config.items()}


def reference(
    source: str, checkpoint: Path, config: str = "project.yaml", **settings: Any
) -> tuple[Imported, dict[str, torch.Tensor]]:
    """Imports a reference checkpoint; returns it with the inputs and outputs of the other code."""
    folder = checkpoint.parent
    imported = import_checkpoint(source, checkpoint, read_config(folder / config), **settings)
    return imported, load_file(folder / "expected.safetensors")


def compvis_content(shared: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the weights and the `params` of a CompVis checkpoint, to be changed by a test."""
    folder = shared / "reference" / "compvis" / name
    content, _ = read_foreign_checkpoint(folder / "last.ckpt")
    params = read_config(folder / "project.yaml")["model"]["params"]
    return {"state_dict": content["state_dict"]}, copy.deepcopy(params)


def check(name: str, ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Compares with the reference, whole numbers exactly, and prints the largest error."""
    largest_error.check(name, ours, reference, TOLERANCE if reference.is_floating_point() else 1)


def on_meta(
    source: str,
    shapes: Shapes,
    config: str | dict[str, Any],
    entry: str = "state_dict",
    **other_entries: object,
) -> Imported:
    """Converts weights of these shapes without memory; `config` may be a published name."""
    arguments = SOURCES[source].published[config] if isinstance(config, str) else config
    with torch.device("meta"):
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
        return SOURCES[source].convert({entry: weights, **other_entries}, arguments)
