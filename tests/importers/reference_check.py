"""What the reference checks share; `pytest tests/importers -k reference -sv` prints the errors."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

TOLERANCE = 1e-4  # of the reference; float32 gives about 1e-5


def read_config(path: Path) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return {str(name): value for name, value in config.items()}


def check(name: str, ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Compares with the reference and prints the largest error."""
    assert ours.shape == reference.shape, name
    errors = (ours.detach().double() - reference.double()).abs()
    largest = float(errors.max())
    print(f"  {name:<26} largest error {largest:.1e}")  # noqa: T201
    assert largest < (TOLERANCE if reference.is_floating_point() else 1), name
