"""Kills trainings at random moments, resumes them, and compares their models with undisturbed ones.

Each run of a tiny stage 1 or 2 is killed (SIGKILL) several times: anywhere, or as soon as it writes
a checkpoint, its tokens, or its model. Then it may finish, and its weights must be those of the
same run without a kill, bit for bit.
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
    *("trainer.max_steps=24", "trainer.val_check_interval=4"),  # each writes a checkpoint
)
STAGES = {
    "vqgan": ("data.resolution=16", "model.base_channels=16", "perceptual=none"),
    "transformer": ("vqgan=undisturbed/vqgan", "model.num_layers=2", "model.embed_dim=32"),
}
MOMENTS = {  # files below a run's directory that it writes then
    "any": None,
    "saving": "checkpoints/*.unfinished",
    "encoding": "tokens/*.unfinished",
    "export": "model.unfinished*",
}
KILLS_A_RUN = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table of kills and of runs that came to another end; exits with 1 if any did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    kills: Counter[tuple[str, str]] = Counter()
    runs: Counter[str] = Counter()
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as name, tqdm(total=options.kills, unit="kill") as bar:
        place = Path(name)
        write_images(place / "images", 24, 16)
        expected, seconds = {}, {}
        for stage in STAGES:
            started = time.monotonic()
            assert not finish(start(stage, place, f"undisturbed/{stage}"), place / "log")
            seconds[stage] = time.monotonic() - started
            expected[stage] = weights(place / "undisturbed" / stage)
        while bar.n < options.kills:
            stage = rng.choice(list(STAGES))
            run = f"{stage}{runs.total()}"
            for _ in range(min(KILLS_A_RUN, options.kills - bar.n)):
                moment = rng.choice(list(MOMENTS))
                often = moment in ("any", "saving")
                delay = rng.uniform(0, seconds[stage]) if often else 0.0
                if kill(start(stage, place, run), place / run, MOMENTS[moment], delay):
                    kills[stage, moment] += 1
                    bar.update()
            error = finish(start(stage, place, run), place / "log")
            runs[stage] += 1
            if error or weights(place / run) != expected[stage]:
                lost.append(f"{run}: {error or 'other weights'}")
                bar.write(f"lost {lost[-1]}")
    durations = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in seconds.items())
    print(f"{machine()}; undisturbed runs: {durations}")
    rows = [
        {"stage": stage, "runs": str(runs[stage])}
        | {f"killed: {moment}": str(kills[stage, moment]) for moment in MOMENTS}
        for stage in STAGES
    ]
    print(aligned(rows))
    print(f"{kills.total()} kills, {runs.total()} runs, {len(lost)} lost", *lost, sep="\n  ")
    sys.exit(bool(lost))


def write_images(folder: Path, count: int, side: int) -> None:
    """Writes small pictures of noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def start(stage: str, place: Path, run: str) -> subprocess.Popen[bytes]:
    """Starts or resumes a run in a process group of its own."""
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
    """Waits for a process; returns the last line of its log if it fails."""
    return "" if process.wait() == 0 else log.read_text().strip().split("\n")[-1]


def kill(process: subprocess.Popen[bytes], run: Path, pattern: str | None, delay: float) -> bool:
    """Kills a process after a delay, and not before it writes a file of the pattern.

    Returns whether it was still running: it finishes if no such file comes (any more).
    """
    started = time.time()

    def is_written(path: Path) -> bool:
        with suppress(FileNotFoundError):  # it has its final name by now
            return path.stat().st_mtime >= started  # others are an earlier kill's
        return False

    while process.poll() is None:
        late = time.time() >= started + delay
        if late and (pattern is None or any(map(is_written, run.glob(pattern)))):
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(0.0005)
    return False


def weights(run: Path) -> dict[str, bytes]:
    """Returns the weights of the model that a run has written."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "model").rglob("*.safetensors"))
    }


if __name__ == "__main__":
    main()
