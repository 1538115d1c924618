"""The command for a GPU runs, tiny and on the CPU: all of it but CUDA itself."""

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.compare import ROOT
from benchmarks.gpu import PRESETS, Part, parts_of

TINY = ["--device=cpu", "--preset=tiny"]
NARROW = {"base_channels": 32, "discriminator_channels": 4, "resolution": 16}
NOT_NEEDED = ("hydra", "omegaconf", "lpips", "wandb", "sklearn", "huggingface_hub", "pytest")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has neither LPIPS nor pytest."""
    find = importlib.util.find_spec
    missing = ("lpips", "pytest")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )


def test_everything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = PRESETS["tiny"]
    monkeypatch.setitem(PRESETS, "tiny", tiny | {"vqgan": tiny["vqgan"] | NARROW})
    parts = [Part("no_such_thing", {"batch_size": 2, "resolution": 16}), *parts_of(PRESETS["tiny"])]
    monkeypatch.setattr(gpu, "parts_of", lambda preset: parts)
    (tmp_path / "profiles.txt").write_text("of an earlier run")
    records = gpu.main([*TINY, f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    assert "no_such_thing, batch 2: taming cannot be timed: " in printed  # and it goes on
    assert [record["name"] for record in records] == [part.name for part in parts[1:]]
    assert len(records) == 13 and "step, batch 1, without LPIPS, channels_last" in printed
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    for record in records:  # in bf16; of the measured peaks
        assert record["ours"]["dtype"] == "bf16"
        share = "bandwidth" if record["measurement"] == "sample" else "peak"
        assert record[f"share_of_{share}"] > 0
    table = (tmp_path / "table.txt").read_text()
    assert "GPU tests: not run, pytest is not installed" in table and table in printed
    assert "second call s" in table and "of bandwidth" in table
    profiles = (tmp_path / "profiles.txt").read_text()
    assert "an earlier run" not in profiles
    for number in range(1, 5):  # both stages, compiled and not; here neither is
        assert f"trace_{number}.json.gz: two calls of " in profiles
        with gzip.open(tmp_path / f"trace_{number}.json.gz") as file:
            assert json.load(file)["traceEvents"]
    assert len(list(tmp_path.iterdir())) <= 8  # as many files as some machines give back


def test_what_the_time_does_not_suffice_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main([*TINY, "--seconds=0", f"--output={tmp_path}"]) == []
    printed = capsys.readouterr().out
    assert printed.count("no time is left for ") == 13 and "nothing was timed" in printed


def test_a_part_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = Part("gpt_step", PRESETS["tiny"]["gpt"] | {"batch_size": 2}, {"warmup": 10**9})
    monkeypatch.setattr(gpu, "parts_of", lambda preset: [endless])
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 1)
    assert gpu.main([*TINY, "--seconds=2", f"--output={tmp_path}"]) == []
    assert "gpt_step, batch 2, warmup: taming cannot be timed: its pro" in capsys.readouterr().out


def test_the_gpu_presets_parts() -> None:
    parts = list(parts_of(PRESETS["gpu"]))
    assert len({part.name for part in parts}) == len(parts)
    # the targets first: a step of each stage with its trace, and sampling one image and 64
    assert [part.name for part in parts[:4]] == [
        "step, batch 16, without LPIPS, channels_last, compile",
        "gpt_step, batch 64, compile",
        "sample_compiled, batch 1",
        "sample_compiled, batch 64, guidance 2",
    ]
    assert sum(part.profile for part in parts) == 4


def test_the_tests_that_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], *, stdout: Any, **_: Any) -> None:
        asked.extend(command)
        stdout.write("..\n2 passed, 9 deselected in 3.00s\n")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    ended = gpu.run_tests(tmp_path / "tests.txt", deadline=float("inf"))
    assert ended == "GPU tests: 2 passed, 9 deselected in 3.00s"
    assert {"test_on_a_gpu.py", "test_compiled.py"} <= {Path(argument).name for argument in asked}


def test_few_packages_suffice() -> None:
    program = f"import sys; sys.modules |= dict.fromkeys({NOT_NEEDED}); import benchmarks.ranks"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks' / 'peers'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = PRESETS["tiny"]
    monkeypatch.setitem(PRESETS, "tiny", tiny | {"vqgan": tiny["vqgan"] | NARROW})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    records = gpu.main([*TINY, "--devices=2", f"--output={tmp_path}"])
    assert [record["devices"] for record in records] == [1, 2, 1, 2]
    for one, two in (records[:2], records[2:]):
        assert len(one["rounds"]) == len(two["rounds"]) == 5
        assert one["collectives"] == {}
        assert two["gain"] == pytest.approx(two["per_second"] / one["per_second"])
    # of the gradients; in stage 1 also of what its codes were used for
    assert records[3]["collectives"] == {"allreduce": 1}
    assert records[1]["collectives"].keys() == {"allreduce"}
