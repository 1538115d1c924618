import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: cores thrash otherwise
os.environ.pop("TQDM_DISABLE", None)  # before tqdm is

from pathlib import Path

import fake_device
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
fake_device.register()
for variable in [name for name in os.environ if name.startswith("WANDB_")]:
    del os.environ[variable]
always = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("short", max_examples=60, derandomize=True, database=None, **always)
settings.register_profile("long", max_examples=12_000, **always)  # an hour or two
settings.load_profile("short")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests of a GPU where there is none."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def begin_alike() -> None:
    """Random numbers do not depend on the tests before, nor products on a training's precision."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def squeezenet(tmp_path: Path) -> Path:
    """Random weights of a SqueezeNet in torchvision's key names."""
    from torchvision.models import squeezenet1_1

    path = tmp_path / "squeezenet.pth"
    torch.save(squeezenet1_1(weights=None).state_dict(), path)
    return path


@pytest.fixture
def shared() -> Path:
    """The folder of data and weights beside the repository, which users do not have."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"needs the development data in {path}")
    return path
