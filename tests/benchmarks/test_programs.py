"""The protocol between the benchmark and its programs."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.compare import Program, ProgramError

SETTINGS: dict[str, Any] = {"batch_size": 2, "resolution": 8, "device": "cpu", "threads": 1}
SETTINGS |= {"dtype": "bf16"}
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
        return (lambda: images), {"package": taming.__file__, "versions": {}}
    product = inference(settings, lambda: images.flatten(1) @ images.flatten(1).T)
    assert product().dtype == (torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32)
    parameters = num_parameters(all=[torch.nn.Linear(3, 2), torch.ones(4)])
    return product, {"parameters": parameters, "versions": {"fake": "1"}}
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Program]:
    (tmp_path / "fake.py").write_text(FAKE)
    return lambda **changes: Program("fake", tmp_path / "fake.py", **changes)


def start(program: Program, measurement: str) -> Any:
    return program.ask("start", SETTINGS | {"measurement": measurement})


def test_a_peer_answers_requests_and_errors(program: Callable[..., Program]) -> None:
    with closing(program()) as peer:
        facts = start(peer, "autoencoder_step")
        assert facts["parameters"] == {"all": 12}
        assert facts["versions"] == {"torch": torch.__version__, "fake": "1"}
        answer = peer.ask("run", 2)
        assert answer["seconds"] > 0
        assert answer["peak_memory_gib"] == 0  # measured on GPUs only
        assert peer.ask("flops") == 2 * 2 * 2 * (3 * 8 * 8)
        assert start(peer, "encode") is None
        with pytest.raises(ProgramError, match="fake cannot be timed: RuntimeError: no decoder"):
            start(peer, "decode")
        with pytest.raises(ProgramError, match="its process ended"):
            start(peer, "step")
        assert start(peer, "autoencoder_step") == facts  # in a new process


def test_a_checkout_is_imported_and_peers_ignore_pythonpath(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taming").mkdir()
    package = tmp_path / "taming" / "__init__.py"
    package.touch()
    with closing(program(checkout=tmp_path)) as other:
        assert start(other, "gpt_step")["package"] == str(package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(program()) as peer:
        try:
            assert start(peer, "gpt_step")["package"] != str(package)
        except ProgramError as error:  # taming is not installed in this environment
            assert "ModuleNotFoundError" in str(error)
