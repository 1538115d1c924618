"""The protocol between the benchmark and the programs that it times."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.compare import Program, ProgramError

SETTINGS = {"batch_size": 2, "resolution": 8, "device": "cpu", "threads": 1}
SETTINGS |= {"dtype": "bf16", "tf32": False}
FAKE = """
import os
import torch
from serve import inference, num_parameters

def build(settings, measurement, images):
    print("noise on standard output")
    if measurement == "encode":
        return None
    if measurement == "decode":
        raise RuntimeError("no decoder")
    if measurement == "step":
        os._exit(3)
    if measurement == "gpt_step":
        import taming
        return (lambda: images), {"package": taming.__file__}
    product = inference(settings, lambda: images.flatten(1) @ images.flatten(1).T)
    assert product().dtype == (torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32)
    return product, {"parameters": num_parameters(all=[torch.nn.Linear(3, 2), torch.ones(4)])}
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Program]:
    (tmp_path / "fake.py").write_text(FAKE)
    return lambda **changes: Program("fake", tmp_path / "fake.py", **changes)


def test_a_peer_process(program: Callable[..., Program]) -> None:
    with program() as peer:
        facts = peer.ask("begin", SETTINGS, "autoencoder_step")
        assert facts["parameters"] == {"all": 12}
        assert facts["torch"] == torch.__version__
        assert torch.backends.cpu.get_cpu_capability() in facts["processor"]
        answer = peer.ask("run", 2)
        assert answer["seconds"] > 0
        assert answer["peak_memory_gib"] is None  # the CPU's is not asked for
        assert peer.ask("flops") == 2 * 2 * 2 * (3 * 8 * 8)
        assert peer.ask("begin", SETTINGS, "encode") is None
        with pytest.raises(ProgramError, match="fake cannot be timed: RuntimeError: no decoder"):
            peer.ask("begin", SETTINGS, "decode")
        assert peer.ask("begin", SETTINGS, "autoencoder_step") == facts  # it goes on
        for request in (("begin", SETTINGS, "step"), ("run", 1)):
            with pytest.raises(ProgramError, match="its process ended"):
                peer.ask(*request)


def test_a_checkout_is_imported_and_peers_see_no_pythonpath(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taming").mkdir()
    package = tmp_path / "taming" / "__init__.py"
    package.touch()
    with program(checkout=tmp_path) as other:
        assert other.ask("begin", SETTINGS, "gpt_step")["package"] == str(package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with program() as peer:
        try:
            assert peer.ask("begin", SETTINGS, "gpt_step")["package"] != str(package)
        except ProgramError as error:  # this environment has no package of that name
            assert "ModuleNotFoundError" in str(error)
