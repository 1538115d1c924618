"""Measures a GPU in nine minutes: tests, training steps, sampling, profiler traces.

    python -m benchmarks.gpu --output outputs/gpu
    python -m benchmarks.gpu --output outputs/gpus --devices 2      # data-parallel steps

The most important measurements come first, and the table lists those that did not fit into the
time. Results are also shares of two measured peaks: large bfloat16 products and memory copies.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from torch.utils.benchmark import Timer

from benchmarks import autoencoder, transformer
from benchmarks.command import DEFAULTS, QUICK, write_lines
from benchmarks.compare import OURS, ROOT, Program, ProgramError, Record, compare
from benchmarks.machine import machine
from benchmarks.table import aligned, cells, number, spread

# measurement, batch size, and what differs from an eager step; the most important first
PARTS = """
step 16 channels_last compile profile
gpt_step 64 compile profile
sample_compiled 1
sample_compiled 64 guidance
step 16 channels_last profile
gpt_step 64 profile
sample 1
sample 64 guidance
step 16
step_before_start 16 channels_last compile
step 8 channels_last compile
step 32 channels_last compile
step 64 channels_last compile
gpt_step 16 compile
gpt_step 128 compile
sample 16 guidance
sample_compiled 16 guidance
sample_compiled 1 guidance
step 16 compile
encode 16 channels_last
decode 16 channels_last
""".strip().splitlines()
PRESETS: dict[str, dict[str, Any]] = {
    "gpu": {
        "stages": (autoencoder.F16, transformer.LARGE),
        "timing": {"warmup": 3, "steps": 10},
    },
    "tiny": {  # to check that the command works, also on a CPU; without compilation
        "stages": (autoencoder.TINY, transformer.TINY),
        "timing": {**QUICK, "batch_size": 2, "steps": 2},
    },
}
TEST_SECONDS = 150


def main(arguments: Sequence[str] | None = None) -> list[Record]:
    """Runs as many measurements as fit into the time, and prints and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("outputs/gpu"))
    add("--seconds", type=float, default=540.0, help="total time, default 540")
    add("--device", default="cuda")
    add("--devices", type=int, default=1, help="2 or more: time only data-parallel steps")
    add("--preset", choices=PRESETS, default="gpu")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in ("profiles.txt", "results.jsonl"):  # of an earlier run
        (options.output / name).unlink(missing_ok=True)
    parts = [part for part in PARTS if options.preset == "gpu" or "compile" not in part]
    lines, records = [machine(options.device)], []
    if find_spec("lpips") is None:
        lines.append("lpips is not installed, so the steps of stage 1 have no LPIPS loss")
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, options.seconds)
    try:
        if options.devices > 1:
            parts = [part for part in parts if "profile" in part][:2]  # one of each stage
            measured = measure_in_parallel(options, parts)
        else:
            lines.append(run_tests(options.output / "tests.txt"))
            flops, bandwidth = measure_peaks(torch.device(options.device), options.preset)
            peaks = f"{flops / 1e12:.4g} Tflop/s in bf16, copies {bandwidth / 1e9:.4g} GB/s"
            lines.append(f"measured: {peaks}")
            measured = measure(options, parts, flops, bandwidth)
        for record in write_lines(measured, options.output / "results.jsonl"):
            records.append(record)
    except TimeoutError:
        lines.append(f"{options.seconds:g} s were not enough for all measurements")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    names = {record["part"] for record in records}
    lines += [f"not timed: {part}" for part in parts if part not in names]
    text = "\n".join([*lines, aligned([record["row"] for record in records])])
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\nwrote {options.output}")
    return records


def out_of_time(*_: object) -> NoReturn:
    """Handles the alarm at the end of the time."""
    raise TimeoutError


def run_tests(path: Path) -> str:
    """Runs the tests that need a GPU and returns a line with their result."""
    if find_spec("pytest") is None:
        return "GPU tests: not run, because pytest is not installed"
    marked = [
        str(file)  # the tests of training come first, because other tests compile for minutes
        for file in sorted((ROOT / "tests").rglob("test_*.py"), reverse=True)
        if "mark.gpu" in file.read_text(encoding="utf-8") and file.parent.name != "benchmarks"
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *marked]
    with path.open("w", encoding="utf-8") as file:
        try:
            subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"GPU tests: not finished after {TEST_SECONDS} s, see {path}"
    return f"GPU tests: {path.read_text(encoding='utf-8').strip().splitlines()[-1]}"


def measure_peaks(device: torch.device, preset: str) -> tuple[float, float]:
    """Returns operations per second of large products, and bytes per second of memory copies."""
    size, num_bytes = (8192, 2**30) if preset == "gpu" else (64, 2**16)
    a, b = torch.rand(2, size, size, device=device).to(torch.bfloat16)
    tensors = {"a": a, "b": b, "c": torch.zeros(num_bytes, dtype=torch.uint8, device=device)}

    def seconds(statement: str) -> float:
        timer = Timer(statement, globals=tensors, num_threads=torch.get_num_threads())
        return timer.blocked_autorange(min_run_time=1.0).median

    return 2 * size**3 / seconds("a @ b"), 2 * num_bytes / seconds("c.clone()")  # reads and writes


def settings_of(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a part: its stage's defaults in bf16 with the part's changes."""
    measurement, batch_size, *words = part.split()
    preset = PRESETS[options.preset]
    return {
        **DEFAULTS,
        **preset["stages"][measurement in transformer.MEASUREMENTS],
        "measurement": measurement,
        "batch_size": int(batch_size),
        "guidance_scale": 2.0 if "guidance" in words else 1.0,
        "perceptual": find_spec("lpips") is not None,
        "device": options.device,
        "dtype": "bf16",
        "compile": "compile" in words,
        "channels_last": "channels_last" in words,
        **preset["timing"],
    }


def measure(
    options: argparse.Namespace, parts: Sequence[str], flops: float, bandwidth: float
) -> Iterator[Record]:
    """Measures each part and its share of a peak, and writes the traces."""
    with (
        closing(Program("taming", ROOT / OURS, checkout=ROOT)) as program,
        (options.output / "profiles.txt").open("w", encoding="utf-8") as profiles,
    ):
        for part in parts:
            print(part, flush=True)
            try:
                settings = settings_of(part, options)
                record = compare(settings, program)
                assert record is not None
                ours = record["ours"]
                if "bytes_read" in ours:
                    share, of = ours["bytes_read"] / bandwidth, "of bandwidth"
                else:
                    share, of = program.ask("flops") / flops, "of peak"
                share /= median(ours["seconds"])
                row = {"": part, **cells(settings, ours), of: f"{share:.1%}"}
                yield {"part": part, "row": row, "share": share, **record}
                if "profile" in part:
                    path = options.output.resolve() / f"{part.replace(' ', '_')}.json.gz"
                    table = program.ask("profile", str(path))
                    print(f"{path.name}: two calls of {part}\n{table}\n", file=profiles, flush=True)
            except ProgramError as error:
                print(f"{part}: {error}")


def output_of(command: Sequence[str]) -> str | None:
    """Returns the output of a command, None if it fails, and kills the processes it started."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate()
        finally:  # otherwise the other ranks would wait on their GPUs for the first
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return None if process.returncode else output


def measure_in_parallel(options: argparse.Namespace, parts: Sequence[str]) -> Iterator[Record]:
    """Measures each part in one process and in several; see `ranks.py`."""
    for part in parts:
        alone: float | None = None
        for devices in (1, options.devices):
            print(f"{part} in {devices} processes", flush=True)
            settings = settings_of(part, options) | {"devices": devices}
            command = [sys.executable, "-m", "benchmarks.ranks", json.dumps(settings)]
            output = output_of(command)
            if output is None:
                continue  # the process has printed the error
            record: Record = json.loads(output.strip().splitlines()[-1])
            per_second = devices * settings["batch_size"] / median(record["rounds"])
            alone = alone or (per_second if devices == 1 else None)
            calls = ", ".join(f"{count} {name}" for name, count in record["collectives"].items())
            row = {
                "": part,
                "processes": str(devices),
                "s a step": spread(record["rounds"]),
                "images or sequences/s": number(per_second),
                "of one": number(per_second / alone) if alone else "",
                "collective calls a step": calls,
            }
            yield {"part": part, "row": row, "settings": settings, **record}


if __name__ == "__main__":
    main()
