"""Times commands from their start to the first line of output.

They run on random pictures and a random generator in a temporary directory, and are ended after
that line. Checkouts take turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.peers.serve import processor
from benchmarks.programs import ROOT
from benchmarks.table import aligned, spread_text
from benchmarks.timing import spread

COMMANDS = {
    "--help": ("train_vqgan", "--help"),
    "sample": ("sample", "checkpoint=generator", "num_images=1", "output_dir=samples"),
    "train_vqgan": ("train_vqgan", "size=tiny", "data.path=images", "data.resolution=32"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, help="another checkout of this program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args(arguments)
    checkouts = {"taming": ROOT}
    if options.checkout is not None:
        checkouts[options.checkout.resolve().name] = options.checkout.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        write_inputs(Path(directory))
        for command in options.commands:
            seconds: dict[str, list[float]] = {name: [] for name in checkouts}
            for number in range(options.rounds + 1):  # the first fills the disk's cache
                for name in list(checkouts)[:: 1 if number % 2 == 0 else -1]:
                    took = seconds_to_first_line(checkouts[name], COMMANDS[command], directory)
                    seconds[name] += [took] if number else []
            row = {"": command} | {f"{n} s": spread_text(spread(s), 2) for n, s in seconds.items()}
            if len(checkouts) == 2:
                ours, peer = seconds.values()
                ratios = [b / a for a, b in zip(ours, peer, strict=True)]
                row["ratio"] = spread_text(spread(ratios), 2)
            rows.append(row)
    print(f"processor: {processor()}; median of {options.rounds} rounds (least–greatest)")
    print("\n".join(aligned(rows)))


def seconds_to_first_line(checkout: Path, command: Sequence[str], directory: str) -> float:
    """Runs a script of a checkout in a directory up to its first line of output.

    Raises:
        RuntimeError: if the line tells of an error.
    """
    script, *arguments = command
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, str(checkout / "scripts" / f"{script}.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        process.kill()
    if not line or "error" in line.lower():
        raise RuntimeError(f"{script} of {checkout} says: {line.strip() or 'nothing'}")
    return seconds


def write_inputs(directory: Path) -> None:
    """Writes `images/`, some random pictures, and `generator/`, a tiny model directory."""
    from taming.conditioning import Unconditional
    from taming.generation import ImageGenerator
    from taming.transformer import GPT, GPTConfig
    from taming.vqgan import VQGAN

    random = np.random.default_rng(0)
    (directory / "images").mkdir()
    for number in range(64):
        pixels = random.integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / "images" / f"{number}.png")
    quantizer = {"kind": "vector", "codebook_size": 8, "codebook_dim": 4}
    tokenizer = VQGAN(
        quantizer=quantizer,
        resolution=16,
        base_channels=8,
        channel_multipliers=[1, 1, 1],
        num_residual_blocks=1,
        latent_channels=8,
    )
    conditioning = Unconditional()
    transformer = GPT(
        GPTConfig(
            codebook_size=8,
            num_prefix_ids=conditioning.num_prefix_ids,
            context_length=16,
            num_layers=1,
            num_heads=1,
            embed_dim=8,
        )
    )
    generator = ImageGenerator(tokenizer, transformer, conditioning, (4, 4))
    generator.save_pretrained(directory / "generator")


if __name__ == "__main__":
    main()
