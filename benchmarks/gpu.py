"""Measures everything on a GPU in nine minutes: tests, training steps, sampling, profiler traces.

    python -m benchmarks.gpu --output outputs/gpu
    python -m benchmarks.gpu --output outputs/gpus --devices 2      # data-parallel steps

The most important comes first, and what the time does not suffice for is named. Shares are of what
the device was measured to do with large products in bfloat16, and with copies in its memory.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import autoencoder, transformer
from benchmarks.compare import ROOT, Program, ProgramError, Record, compare, spread
from benchmarks.machine import copy_bandwidth, product_flops
from benchmarks.peers.serve import processor
from benchmarks.table import aligned, cells, milliseconds
from taming.hardware import device_name

VQGAN, GPT = autoencoder.F16, transformer.LARGE
PRESETS: dict[str, dict[str, Any]] = {
    "gpu": {
        "vqgan": VQGAN,
        "gpt": GPT,
        "images": (16, 8, 32, 64),  # in a batch
        "sequences": (64, 16, 128),
        "compile": True,
        "timing": {"rounds": 5, "warmup": 3, "turn_seconds": 1.0},
    },
    "tiny": {  # to see that it works, on a processor too
        "vqgan": VQGAN
        | {"resolution": 32, "base_channels": 32, "num_residual_blocks": 1}
        | {"channel_multipliers": [1, 2], "attention_resolutions": [], "latent_channels": 32}
        | {"codebook_size": 8, "codebook_dim": 4, "discriminator_layers": 1},
        "gpt": GPT
        | {"num_tokens": 9, "num_layers": 1, "num_heads": 2, "embed_dim": 8}
        | {"codebook_size": 16, "top_k": 4},
        "images": (2, 1),
        "sequences": (2, 1),
        "compile": False,
        "timing": {"rounds": 1, "warmup": 1, "turn_seconds": 0.0},
    },
}
LEAST_SECONDS = 10  # that a part is begun for
TEST_SECONDS = 150


@dataclass(frozen=True)
class Part:
    """A measurement of the benchmarks of both stages, and how it differs from their settings."""

    measurement: str
    case: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    profile: bool = False

    @property
    def name(self) -> str:
        """What is measured, in words."""
        words = [self.measurement, f"batch {self.case['batch_size']}"]
        if self.case.get("guidance_scale", 1) != 1:
            words.append(f"guidance {self.case['guidance_scale']:g}")
        if self.case.get("perceptual") is False:
            words.append("without LPIPS")
        return ", ".join([*words, *(key for key, value in self.options.items() if value)])


def parts_of(preset: dict[str, Any]) -> Iterator[Part]:
    """Yields what is measured, the targets and their traces first."""
    first, *others = preset["images"]
    vqgan = preset["vqgan"] | {"batch_size": first}
    if importlib.util.find_spec("lpips") is None:
        print("lpips is not installed: the steps of stage 1 are without it")
        vqgan["perceptual"] = False
    many, *numbers = preset["sequences"]
    gpt, guided = preset["gpt"] | {"batch_size": many}, {"guidance_scale": 2.0}
    compiled, last = {"compile": preset["compile"]}, {"channels_last": True}
    yield Part("step", vqgan, last | compiled, profile=True)
    yield Part("gpt_step", gpt, compiled, profile=True)
    if preset["compile"]:
        yield Part("sample_compiled", gpt | {"batch_size": 1})
        yield Part("sample_compiled", gpt | guided)
    yield Part("step", vqgan, last, profile=True)
    yield Part("gpt_step", gpt, profile=True)
    yield Part("sample", gpt | {"batch_size": 1})
    yield Part("sample", gpt | guided)
    yield Part("step", vqgan)
    yield Part("step_before_start", vqgan, last | compiled)
    for number in others:
        yield Part("step", vqgan | {"batch_size": number}, last | compiled)
    for number in numbers:
        yield Part("gpt_step", gpt | {"batch_size": number}, compiled)
    yield Part("sample", gpt | guided | {"batch_size": 16})
    if preset["compile"]:
        yield Part("sample_compiled", gpt | guided | {"batch_size": 16})
        yield Part("sample_compiled", gpt | guided | {"batch_size": 1})
        yield Part("step", vqgan, compiled)
    for measurement in ("encode", "decode"):
        yield Part(measurement, vqgan, last)


def main(arguments: Sequence[str] | None = None) -> list[Record]:
    """Runs everything that the time suffices for, and prints and writes what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("outputs/gpu"))
    add("--seconds", type=float, default=540.0, help="time for everything, 540 if not given")
    add("--device", default="cuda")
    add("--devices", type=int, default=1, help="from 2 on, data-parallel steps alone are timed")
    add("--preset", choices=PRESETS, default="gpu")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    options.output.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    lines = [f"{device_name(device)}; processor {processor()}; torch {torch.__version__}"]
    for name in ("profiles.txt", "results.jsonl"):
        (options.output / name).unlink(missing_ok=True)
    if options.devices > 1:
        found, as_cells = steps_in_parallel(options, deadline), cells_in_parallel
    else:
        lines.append(run_tests(options.output / "tests.txt", deadline))
        large = options.preset == "gpu"
        peaks = {
            "peak_tflops": product_flops(device, torch.bfloat16, 8192 if large else 64) / 1e12,
            "peak_bandwidth_gbs": copy_bandwidth(device, 2**30 if large else 2**16) / 1e9,
        }
        lines.append("measured: {:.4g} Tflop/s in bf16, copies {:.4g} GB/s".format(*peaks.values()))
        found, as_cells = measure(options, peaks, deadline), cells_alone
    records: list[Record] = []
    for record in found:
        records.append(record)
        with (options.output / "results.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps(record, ensure_ascii=False), file=file)
    lines += aligned([as_cells(record) for record in records]) if records else ["nothing was timed"]
    text = "\n".join(lines)
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\nwrote {options.output}")
    return records


def measure(
    options: argparse.Namespace, peaks: dict[str, float], deadline: float
) -> Iterator[Record]:
    """Yields records of what the time suffices for; writes traces beside them."""
    common = {"device": options.device, "threads": torch.get_num_threads(), "dtype": "bf16"}
    common |= {"tf32": True, "compile": False, "channels_last": False} | peaks
    preset = PRESETS[options.preset]
    common |= preset["timing"]
    parts, traces = list(parts_of(preset)), 0
    while parts:  # in one process, and after a failure in another: a failed GPU does nothing more
        with Program("taming", ROOT / "benchmarks" / "ours.py", checkout=ROOT) as program:
            clock = threading.Timer(deadline - time.monotonic(), program.kill)
            clock.start()
            try:
                while parts:
                    part = parts.pop(0)
                    if not has_time(part.name, deadline):
                        continue
                    case = {"name": part.name, **part.case}
                    record = compare(case, part.measurement, common | part.options, program)
                    assert record is not None
                    yield {"name": part.name, "break_even": None, **peaks, **record}
                    if part.profile:
                        traces += 1
                        path = options.output.resolve() / f"trace_{traces}.json.gz"
                        table = program.ask("profile", str(path))
                        text = f"{path.name}: two calls of {part.name}\n{table}\n"
                        with (options.output / "profiles.txt").open("a", encoding="utf-8") as file:
                            print(text, file=file)
            except ProgramError as error:
                print(f"{part.name}: {error}")
            finally:
                clock.cancel()


def has_time(name: str, deadline: float) -> bool:
    """Says what comes next and how much time is left, or that too little is."""
    left = deadline - time.monotonic()
    enough = left >= LEAST_SECONDS
    print(f"{left:4.0f} s left: {name}" if enough else f"no time is left for {name}", flush=True)
    return enough


def cells_alone(record: Record) -> dict[str, str]:
    """Returns a row of the table: that of a comparison, without a peer."""
    second = record["ours"]["second_seconds"]
    row = {"": record["name"], **{key: cell for key, cell in cells(record).items() if key}}
    return row | {"second call s": "" if second is None else f"{second:.2f}"}


def run_tests(path: Path, deadline: float) -> str:
    """Runs the tests that need a GPU; returns how they ended."""
    if importlib.util.find_spec("pytest") is None:
        return "GPU tests: not run, pytest is not installed"
    marked = [
        str(file)
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in file.read_text(encoding="utf-8") and file.parent.name != "benchmarks"
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *marked]
    with path.open("w", encoding="utf-8") as file:
        try:
            left = min(TEST_SECONDS, deadline - time.monotonic())
            subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, timeout=left)
        except subprocess.TimeoutExpired:
            return f"GPU tests: not finished after {left:.0f} s, see {path}"
    return f"GPU tests: {path.read_text(encoding='utf-8').strip().splitlines()[-1]}"


def steps_in_parallel(options: argparse.Namespace, deadline: float) -> Iterator[Record]:
    """Yields each stage's steps per process, in one process and in several; see `ranks.py`."""
    paths = [str(ROOT), str(ROOT / "benchmarks" / "peers")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    parts = [part for part in parts_of(PRESETS[options.preset]) if part.profile]
    for part in parts[:2]:  # one of each stage
        alone: float | None = None
        for devices in (1, options.devices):
            name = f"{part.name} in {devices} processes"
            if not has_time(name, deadline):
                continue
            settings = {"device": options.device, "devices": devices, **part.case}
            settings |= {"compile": False, "channels_last": False, **part.options}
            settings |= {"steps": 2 if options.preset == "tiny" else 10}
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            launcher = [*launch, str(devices)] if devices > 1 else []
            command = [sys.executable, *launcher, "-m", "benchmarks.ranks", part.measurement]
            try:
                done = subprocess.run(
                    [*command, json.dumps(settings)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=deadline - time.monotonic(),
                )
            except subprocess.SubprocessError as error:
                print(f"{name}: {type(error).__name__}")
                continue
            record: Record = json.loads(done.stdout.strip().splitlines()[-1])
            record |= {"name": part.name, "devices": devices, "seconds": spread(record["rounds"])}
            per_second = devices * part.case["batch_size"] / record["seconds"]["median"]
            alone = alone or (per_second if devices == 1 else None)
            yield record | {"per_second": per_second, "gain": alone and per_second / alone}


def cells_in_parallel(record: Record) -> dict[str, str]:
    """Returns a row of the table."""
    calls = ", ".join(f"{number} {name}" for name, number in record["collectives"].items())
    return {
        "": record["name"],
        "processes": str(record["devices"]),
        "ms a step": milliseconds(record["seconds"]),
        "images or sequences/s": f"{record['per_second']:.4g}",
        "of one": "" if record["gain"] is None else f"{record['gain']:.2f}",
        "collective calls a step": calls,
    }


if __name__ == "__main__":
    main()
