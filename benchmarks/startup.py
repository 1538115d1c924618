"""Times commands from their start to the first line of output, on random images and a tiny model.

The benchmark ends each command after that line. With another checkout, the two take turns.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.compare import ROOT
from benchmarks.fault_drill import write_images
from benchmarks.machine import machine
from benchmarks.table import aligned, ratios, spread, take_turns

COMMANDS = {
    "help": ("train_vqgan", "--help"),
    "sample": ("sample", "checkpoint=generator", "num_images=1", "output_dir=samples"),
    "train_vqgan": ("train_vqgan", "size=tiny", "data.path=images", "perceptual=none"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, help="another checkout of this program")
    parser.add_argument("--generator", type=Path, help="a model directory for both checkouts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args(arguments)
    checkouts = {"taming": ROOT}
    if options.checkout:
        checkouts[str(options.checkout)] = options.checkout.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as inputs:
        write_images(Path(inputs, "images"), 64, 32)
        if options.generator:
            shutil.copytree(options.generator, Path(inputs, "generator"))
        else:
            write_generator(Path(inputs, "generator"))
        for name in options.commands:
            run = partial(seconds_to_first_line, inputs, *COMMANDS[name])
            sides = {side: partial(run, checkout=path) for side, path in checkouts.items()}
            take_turns(sides, 1)  # fills the disk's cache
            seconds = take_turns(sides, options.rounds)
            row = {"": name} | {f"{side} s": spread(rounds) for side, rounds in seconds.items()}
            if options.checkout:
                ours, other = seconds.values()
                row["ratio"] = spread(ratios(other, ours))
            rows.append(row)
    print(f"{machine()}; median of {options.rounds} rounds (minimum–maximum)\n{aligned(rows)}")


def seconds_to_first_line(inputs: str, script: str, *arguments: str, checkout: Path) -> float:
    """Runs a script of a checkout on a copy of the inputs until it prints its first line.

    Raises:
        RuntimeError: if it prints nothing, or an error.
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
        raise RuntimeError(f"{script} of {checkout} prints: {line or 'nothing'}")
    return seconds


def write_generator(directory: Path) -> None:
    """Writes a tiny random generator."""
    from taming.conditioning import Unconditional
    from taming.generation import ImageGenerator
    from taming.tokenizer import VQGAN
    from taming.transformer import GPT, GPTConfig

    quantizer = {"kind": "vector", "codebook_size": 8, "codebook_dim": 4}
    sizes = {"base_channels": 8, "num_residual_blocks": 1, "latent_channels": 8}
    tokenizer = VQGAN(quantizer=quantizer, resolution=16, channel_multipliers=[1, 1, 1], **sizes)
    sizes = Unconditional().transformer_config((4, 4))
    config = GPTConfig(codebook_size=8, num_layers=1, num_heads=1, embed_dim=8, **sizes)
    model = ImageGenerator(tokenizer, GPT(config), Unconditional(), (4, 4))
    model.save_pretrained(directory)


if __name__ == "__main__":
    main()
