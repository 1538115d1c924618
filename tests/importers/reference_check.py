"""What the reference checks share; `pytest tests/importers -k reference -sv` prints the errors."""

from pathlib import Path
from typing import Any

import largest_error
import torch
from omegaconf import OmegaConf

TOLERANCE = 1e-4  # of the reference; float32 gives about 1e-5


def read_config(path: Path) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return {str(name): value for name, value in config.items()}


def check(name: str, ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Compares with the reference, whole numbers exactly, and prints the largest error."""
    largest_error.check(name, ours, reference, TOLERANCE if reference.is_floating_point() else 1)
