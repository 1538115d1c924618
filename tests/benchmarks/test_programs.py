"""The protocol between the benchmark and the programs that it times."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.programs import Process, Program, ProgramError

SETTINGS = {"batch_size": 2, "resolution": 8, "device": "cpu", "threads": 1}
SETTINGS |= {"dtype": "float32", "tf32": False}
FAKE = """
import os, sys
import torch
from serve import inference, num_parameters

def build(settings, measurement, images):
    print("noise on standard output")
    if measurement == "encode":
        return None
    if measurement == "decode":
        raise RuntimeError("no decoder")
    if measurement == "step":
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    if measurement == "sample":
        import no_such_package
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
    with Process(program(dtype="bf16")) as peer:
        facts = peer.begin(SETTINGS, "autoencoder_step")
        assert facts is not None
        assert facts["parameters"] == {"all": 12}
        assert (facts["dtype"], facts["tf32"]) == ("bf16", False)  # its own, and the run's
        assert facts["torch"] == torch.__version__
        assert torch.backends.cpu.get_cpu_capability() in facts["processor"]
        answer = peer.run(2)
        assert answer["seconds"] > 0
        assert answer["peak_memory_gib"] is None  # the CPU's is not asked for
        assert peer.flops() == 2 * 2 * 2 * (3 * 8 * 8)
        assert peer.begin(SETTINGS, "encode") is None
        with pytest.raises(ProgramError, match="RuntimeError: no decoder"):
            peer.begin(SETTINGS, "decode")
        with pytest.raises(ProgramError, match=r"no_such_package.*README\.md"):
            peer.begin(SETTINGS, "sample")
        assert peer.begin(SETTINGS, "autoencoder_step") == facts  # it goes on
        with pytest.raises(ProgramError, match=r"its process ended\. out of memory"):
            peer.begin(SETTINGS, "step")
        with pytest.raises(ProgramError, match="its process ended"):
            peer.run(1)


def test_a_checkout_is_imported_and_peers_see_no_pythonpath(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taming").mkdir()
    package = tmp_path / "taming" / "__init__.py"
    package.touch()
    with Process(program(checkout=tmp_path)) as other:
        facts = other.begin(SETTINGS, "gpt_step")
        assert facts is not None
        assert facts["package"] == str(package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Process(program()) as peer:
        try:
            facts = peer.begin(SETTINGS, "gpt_step")
        except ProgramError as error:  # this environment has no package of that name
            assert "ModuleNotFoundError" in str(error)
        else:
            assert facts is not None
            assert facts["package"] != str(package)


def test_no_such_python(tmp_path: Path) -> None:
    missing = Program("compvis", Path(__file__), tmp_path / "bin" / "python")
    with (
        Process(missing) as peer,
        pytest.raises(
            ProgramError, match=r"compvis cannot be timed: there is no Python at .*README"
        ),
    ):
        peer.begin(SETTINGS, "encode")
