"""Kills training runs at random moments, resumes them, and compares their models.

The drill kills (SIGKILL) each run of a tiny stage 1 or 2 several times: at any moment, or when it
writes a checkpoint, its tokens or its model. Then it lets the run finish. The weights must equal
the weights of an undisturbed run bit for bit.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from benchmarks.compare import ROOT
from benchmarks.machine import machine
from benchmarks.table import aligned

TINY = (
    *("size=tiny", "data.path=images", "data.batch_size=4", "logger=csv", "resume=auto"),
    *(
        "trainer.max_steps=24",
        "trainer.val_check_interval=4",
    ),  # a validation saves
)
STAGES = {
    "vqgan": ("data.resolution=16", "model.base_channels=16", "perceptual=none"),
    "transformer": ("vqgan=undisturbed/vqgan", "model.num_layers=2", "model.embed_dim=32"),
}
MOMENTS = {  # files that a run writes at that moment, in its directory
    "any": None,
    "saving": "checkpoints/*.unfinished",
    "encoding": "tokens/*.unfinished",
    "export": "model.unfinished*",
}
KILLS_A_RUN = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table of kills and the runs with other weights; exits with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    kills: Counter[tuple[str, str]] = Counter()
    runs: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name, tqdm(total=options.kills, unit="kill") as bar:
        place = Path(name)
        write_images(place / "images", 24, 16)
        reference, seconds = {}, {}
        for stage in STAGES:
            started = time.monotonic()
            assert not finish(start(stage, place, f"undisturbed/{stage}"), place / "log")
            seconds[stage] = time.monotonic() - started
            reference[stage] = weights(place / "undisturbed" / stage)
        while bar.n < options.kills:
            stage = rng.choice(list(STAGES))
            run = f"{stage}{runs.total()}"
            for _ in range(min(KILLS_A_RUN, options.kills - bar.n)):
                moment = rng.choice(list(MOMENTS))
                # the other moments come once in a run
                can_wait = moment in ("any", "saving")
                delay = rng.uniform(0, seconds[stage]) if can_wait else 0.0
                if kill(start(stage, place, run), place / run, MOMENTS[moment], delay):
                    kills[stage, moment] += 1
                    bar.update()
            error = finish(start(stage, place, run), place / "log")
            runs[stage] += 1
            if error or weights(place / run) != reference[stage]:
                failures.append(f"{run}: {error or 'other weights'}")
                bar.write(f"lost {failures[-1]}")
    durations = ", ".join(f"{stage} {duration:.1f} s" for stage, duration in seconds.items())
    print(f"{machine()}; undisturbed runs: {durations}")
    rows = [
        {"stage": stage, "runs": str(runs[stage])}
        | {f"killed: {moment}": str(kills[stage, moment]) for moment in MOMENTS}
        for stage in STAGES
    ]
    print(aligned(rows))
    print(
        f"{kills.total()} kills, {runs.total()} runs, {len(failures)} lost", *failures, sep="\n  "
    )
    sys.exit(bool(failures))


def write_images(folder: Path, count: int, side: int) -> None:
    """Writes small images of noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def start(stage: str, place: Path, run: str) -> subprocess.Popen[bytes]:
    """Starts or resumes a run in a new process group."""
    tokens = (f"tokens.cache_dir={run}/tokens",) if stage == "transformer" else ()
    script = ROOT / "scripts" / f"train_{stage}.py"
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, script, *TINY, *STAGES[stage], *tokens, f"run_dir={run}"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(process: subprocess.Popen[bytes], log: Path) -> str:
    """Waits for a process and returns the last line of its log if it failed."""
    return "" if process.wait() == 0 else log.read_text().strip().split("\n")[-1]


def kill(process: subprocess.Popen[bytes], run: Path, pattern: str | None, delay: float) -> bool:
    """Kills a process after a delay, once it writes a file that matches the pattern.

    Returns:
        Whether it was killed. A process that writes no such file finishes.
    """
    started = time.time()

    def is_written(path: Path) -> bool:
        with suppress(FileNotFoundError):  # renamed in the meantime
            return path.stat().st_mtime >= started  # older files are from an earlier kill
        return False

    while process.poll() is None:
        due = time.time() >= started + delay
        if due and (pattern is None or any(map(is_written, run.glob(pattern)))):
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(0.0005)
    return False


def weights(run: Path) -> dict[str, bytes]:
    """Returns the weight files of the model of a run."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "model").rglob("*.safetensors"))
    }


if __name__ == "__main__":
    main()
