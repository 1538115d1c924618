import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: cores thrash otherwise

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def shared() -> Path:
    """The folder of data and weights beside the repository, which users do not have."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"needs the development data in {path}")
    return path
