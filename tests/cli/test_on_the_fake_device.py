"""The commands after the training use a device without leaving anything on the CPU."""

from pathlib import Path

import pytest
from fake_device import fake_device
from tiny_commands import TINY_EVALUATION, Run, UntrainedLPIPS, succeeds

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # copies of weights


def test_encode_sample_complete_and_reconstruct(
    run: Run, vqgan_run: Path, transformer_run: Path, images: Path
) -> None:
    generator, data = f"checkpoint={transformer_run}", f"data.path={images}"
    with fake_device() as device:
        for overrides in (
            ("encode_dataset", f"vqgan={vqgan_run}", data, "data.loader.num_workers=0"),
            ("sample", generator, "num_images=3", "top_k=5", "top_p=0.9", "grid_size=[3,2]"),
            ("sample", generator, f"complete.path={images}"),
            ("reconstruct", f"checkpoint={vqgan_run}", f"input={images}"),
        ):
            device.forget()
            succeeds(run(*overrides, "device=npy"))
            assert device.reads, overrides  # it was used


@pytest.mark.parametrize("model", ["vqgan_run", "transformer_run"])
def test_evaluation_and_report(
    run: Run,
    model: str,
    images: Path,
    squeezenet: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taming.losses.LPIPSLoss", UntrainedLPIPS)
    path = request.getfixturevalue(model)
    judges = (f"frechet.weights={squeezenet}", "frechet.resolution=32", "lpips=vgg")
    settings = (f"checkpoint={path}", f"data.path={images}", *judges, *TINY_EVALUATION)
    with fake_device() as device:
        succeeds(run("evaluate", *settings, "device=npy"))
        assert device.reads
        device.forget()
        succeeds(run("report", f"runs={path}", "device=npy"))
        assert device.reads
