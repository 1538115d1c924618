"""Times commands up to the first line of output, on random pictures and a tiny random generator.

The command is ended after that line. With another checkout the two take turns.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.compare import ROOT, spread
from benchmarks.machine import machine
from benchmarks.table import aligned, spread_text

COMMANDS = {
    "help": ("train_vqgan", "--help"),
    "sample": ("sample", "checkpoint=generator", "num_images=1", "output_dir=samples"),
    "train_vqgan": ("train_vqgan", "size=tiny", "data.path=images", "perceptual=none"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, help="another checkout of this program")
    parser.add_argument("--generator", type=Path, help="a model directory that both can read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args(arguments)
    checkouts = [ROOT, *([options.checkout.resolve()] if options.checkout else [])]
    rows = []
    with tempfile.TemporaryDirectory() as inputs:
        write_inputs(Path(inputs), options.generator)
        for name in options.commands:
            rounds = []
            for number in range(1 + options.rounds):
                turn = checkouts[:: 1 if number % 2 == 0 else -1]
                rounds.append({c: seconds_to_first_line(c, inputs, *COMMANDS[name]) for c in turn})
            row = {"": name}
            for checkout in checkouts:  # the first round fills the disk's cache
                seconds = spread([taken[checkout] for taken in rounds[1:]])
                side = "taming" if checkout == ROOT else str(options.checkout)
                row[f"{side} s"] = spread_text(seconds, 2)
            if options.checkout:
                ratios = [taken[checkouts[1]] / taken[ROOT] for taken in rounds[1:]]
                row["ratio"] = spread_text(spread(ratios), 2)
            rows.append(row)
    print(f"{machine()}; median of {options.rounds} rounds (least–greatest)")
    print("\n".join(aligned(rows)))


def seconds_to_first_line(checkout: Path, inputs: str, script: str, *arguments: str) -> float:
    """Runs a script of a checkout on a copy of the inputs, up to its first line.

    Raises:
        RuntimeError: if there is none, or it tells of an error.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        shutil.copytree(inputs, directory, dirs_exist_ok=True)
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
            line = next(filter(None, map(str.strip, process.stdout)), "")
            seconds = time.perf_counter() - started
            process.kill()
    if not line or "error" in line.lower():
        raise RuntimeError(f"{script} of {checkout} says: {line or 'nothing'}")
    return seconds


def write_inputs(directory: Path, generator: Path | None) -> None:
    """Writes `images/`, random pictures, and `generator/`, a copy or a tiny random model."""
    from taming.conditioning import Unconditional
    from taming.generation import ImageGenerator
    from taming.transformer import GPT, GPTConfig
    from taming.vqgan import VQGAN

    random = np.random.default_rng(0)
    (directory / "images").mkdir()
    for number in range(64):
        pixels = random.integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / "images" / f"{number}.png")
    if generator is not None:
        shutil.copytree(generator, directory / "generator")
        return
    quantizer = {"kind": "vector", "codebook_size": 8, "codebook_dim": 4}
    sizes = {"base_channels": 8, "num_residual_blocks": 1, "latent_channels": 8}
    tokenizer = VQGAN(quantizer=quantizer, resolution=16, channel_multipliers=[1, 1, 1], **sizes)
    sizes = Unconditional().transformer_config((4, 4))
    config = GPTConfig(codebook_size=8, num_layers=1, num_heads=1, embed_dim=8, **sizes)
    model = ImageGenerator(tokenizer, GPT(config), Unconditional(), (4, 4))
    model.save_pretrained(directory / "generator")


if __name__ == "__main__":
    main()
