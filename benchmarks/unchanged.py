"""Trains, samples and imports with two checkouts, and compares the results bit for bit.

    git worktree add ../before COMMIT
    python -m benchmarks.unchanged --checkout ../before

`--references DIR` also imports reference checkpoints of other programs. The folder is laid out as
`compvis/vqgan*`, `compvis/transformer_*`, `llamagen/tokenizer` and `llamagen/gpt`.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.compare import ROOT
from benchmarks.machine import machine
from benchmarks.table import aligned

Command = tuple[str, ...]

TRAIN_AND_SAMPLE: tuple[Command, ...] = (
    ("train_vqgan", "experiment=digits", "trainer.max_steps=60", "trainer.val_check_interval=30",
     "run_dir=vqgan"),
    ("train_transformer", "experiment=transformer_digits", "vqgan=vqgan", "tokens.cache_dir=tokens",
     "trainer.max_steps=40", "trainer.val_check_interval=20", "run_dir=transformer"),
    ("sample", "checkpoint=transformer", "num_images=8", "seed=0", "output_dir=samples"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per file of weights or samples; exits with 1 if any of them differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="the other checkout")
    parser.add_argument("--references", type=Path, help="checkpoints of other programs")
    options = parser.parse_args(arguments)
    commands = [*TRAIN_AND_SAMPLE, *imports(options.references)]
    before, now = (checksums(path.resolve(), commands) for path in (options.checkout, ROOT))
    rows = [
        {"file": name, "before": before.get(name, "–"), "now": now.get(name, "–")}
        for name in sorted(before.keys() | now.keys())
    ]
    print(f"{machine()}\n{aligned(rows)}")
    if before != now:
        sys.exit("the results differ")
    print(f"{len(rows)} files, equal bit for bit")


def imports(references: Path | None) -> Iterator[Command]:
    """Yields an import command for each reference checkpoint."""
    if references is None:
        return
    for folder in sorted(path.parent for path in references.resolve().glob("*/*/expected.*")):
        (checkpoint,) = (p for p in folder.iterdir() if p.suffix in (".ckpt", ".pt"))
        (config,) = (p for p in folder.iterdir() if p.suffix in (".yaml", ".json"))
        source = f"{folder.parent.name}_{folder.name.split('_')[0]}"
        arguments = (f"source={source}", f"checkpoint={checkpoint}", f"config={config}")
        yield "import_checkpoint", *arguments, f"output=imports/{folder.name}"


def checksums(checkout: Path, commands: Sequence[Command]) -> dict[str, str]:
    """Runs the commands of a checkout; returns the SHA-256 prefix of each file with tensors.

    Raises:
        subprocess.CalledProcessError: if a command fails. Its output was printed.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as directory:
        for script, *arguments in commands:
            command = [sys.executable, str(checkout / "scripts" / f"{script}.py"), *arguments]
            subprocess.run(command, cwd=directory, env=environment, check=True)
        root = Path(directory)
        files = sorted([*root.rglob("*.safetensors"), *root.rglob("samples.npz")])
        return {str(path.relative_to(root)): checksum(path) for path in files}


def checksum(path: Path) -> str:
    """Returns the start of a SHA-256 over the names and contents of a file's arrays."""
    arrays = load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
