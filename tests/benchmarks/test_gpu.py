"""The GPU benchmark on a CPU with tiny models: everything except CUDA."""

import contextlib
import gzip
import io
import json
import logging
import os
import select
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, ours, ranks
from benchmarks.compare import ROOT, Program, ProgramError
from benchmarks.gpu import PARTS, PRESETS
from benchmarks.peers.serve import Session

TINY = ["--device=cpu", "--preset=tiny"]
OPTIONAL = ("hydra", "omegaconf", "lpips", "wandb", "sklearn", "huggingface_hub", "pytest")


class ProgramInThisProcess(Program):
    """Runs this program without a new process, which would import PyTorch again."""

    def ask(self, method: str, *arguments: Any) -> Any:
        if not hasattr(self, "session"):
            self.session = Session(ours.build)
        try:
            return json.loads(json.dumps(getattr(self.session, method)(*arguments)))
        except AttributeError as error:
            raise ProgramError(f"{self.name} cannot be timed: {error}") from error


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides LPIPS and pytest."""
    missing = ("lpips", "pytest")
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in missing else find_spec(name))
    monkeypatch.setattr(gpu, "Program", ProgramInThisProcess)


def test_measures_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [part for part in PARTS if "compile" not in part]
    failed = parts.pop(-2)

    def compare(settings: dict[str, Any], program: Program) -> Any:
        return (
            program.ask("fail")
            if settings["measurement"] == "encode"
            else original(settings, program)
        )

    original = gpu.compare
    monkeypatch.setattr(gpu, "compare", compare)
    (tmp_path / "profiles.txt").write_text("of an earlier run")
    records = gpu.main([*TINY, f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    assert f"{failed}: taming cannot be timed: " in printed  # and the next measurement runs
    assert [record["part"] for record in records] == parts
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    for record in records:
        assert record["ours"]["dtype"] == "bf16"
        assert record["share"] > 0
    table = (tmp_path / "table.txt").read_text()
    assert table in printed
    assert "GPU tests: not run, because pytest is not installed" in table
    assert "lpips is not installed" in table and f"not timed: {failed}" in table
    assert "of peak" in table and "of bandwidth" in table
    profiles = (tmp_path / "profiles.txt").read_text()
    assert "an earlier run" not in profiles
    for part in ("step_16_channels_last_profile", "gpt_step_64_profile"):
        assert f"{part}.json.gz: two calls of " in profiles
        with gzip.open(tmp_path / f"{part}.json.gz") as file:
            assert json.load(file)["traceEvents"]


def test_lists_the_measurements_that_did_not_fit_into_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS["tiny"]["timing"], "warmup", 10**9)  # never ends
    assert gpu.main([*TINY, "--seconds=4", f"--output={tmp_path}"]) == []
    printed = capsys.readouterr().out
    first = "not timed: step 16 channels_last profile"
    assert f"4 s were not enough for all measurements\n{first}" in printed


def test_the_alarm_leaves_no_process_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the first rank starts the other ranks, which inherit its output."""
    assert gpu.output_of([sys.executable, "-c", "raise SystemExit(1)"]) is None
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    other = "import time; print('started', flush=True); time.sleep(60)"
    outputs: list[int] = []

    def communicate(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        outputs.append(os.dup(process.stdout.fileno()))
        raise TimeoutError

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(TimeoutError):
        gpu.output_of([sys.executable, "-c", start, other])
    assert select.select(outputs, [], [], 10)[0] == outputs
    assert os.read(outputs[0], 1) == b""  # no process that could write is alive
    os.close(outputs[0])


def test_the_most_important_measurements_come_first() -> None:
    assert len(set(PARTS)) == len(PARTS)
    assert PARTS[:4] == [  # a traced step of each stage, then sampling one image and 64
        "step 16 channels_last compile profile",
        "gpt_step 64 compile profile",
        "sample_compiled 1",
        "sample_compiled 64 guidance",
    ]


def test_runs_the_gpu_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[str] = []

    def run(command: list[str], *, stdout: Any, **_: Any) -> None:
        arguments.extend(command)
        stdout.write("..\n2 passed, 9 deselected in 3.00s\n")

    monkeypatch.setattr(gpu, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    result = gpu.run_tests(tmp_path / "tests.txt")
    assert result == "GPU tests: 2 passed, 9 deselected in 3.00s"
    names = [Path(argument).name for argument in arguments]
    assert names.index("test_on_a_gpu.py") < names.index("test_compiled.py")


def test_needs_few_packages() -> None:
    program = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL}); import benchmarks.ranks"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_two_processes_are_compared_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_process = gpu.output_of

    def output_of(command: list[str]) -> str | None:
        settings = json.loads(command[-1])
        if settings["devices"] > 1:
            return start_process(command)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            ranks.main(settings)
        return output.getvalue()

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(gpu, "output_of", output_of)
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "setLevel", lambda level: None)
    records = gpu.main([*TINY, "--devices=2", f"--output={tmp_path}"])
    assert [record["settings"]["devices"] for record in records] == [1, 2, 1, 2]
    for one, two in (records[:2], records[2:]):
        assert len(one["rounds"]) == len(two["rounds"]) == 5
        assert one["collectives"] == {}
        assert one["row"]["of one"] == "1" and float(two["row"]["of one"]) > 0
    # one sum of the gradients; stage 1 also sums the usage of its codes
    assert records[3]["collectives"] == {"allreduce": 1}
    assert records[1]["collectives"].keys() == {"allreduce"}
