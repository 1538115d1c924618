"""Trains both stages in 1, 2 and 4 processes with one global batch, and compares the numbers.

    python -m benchmarks.equality --output outputs/equality

Stage 2 also trains with its weights split between two processes, then in one process, then split
again. The command takes some minutes on two cores, and uses GPUs if there are enough. Dropout and
the revival of codes are off, because each process draws its own random numbers for them.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.compare import ROOT
from benchmarks.table import aligned

STEPS, BATCH = 8, 16
COMMON = f"""
data=digits data.resolution=16 trainer.val_check_interval={STEPS} trainer.log_every_n_steps=1
training.compile=false training.optimizer.schedule=constant trainer.precision=32-true
training.optimizer.warmup_steps=5 callbacks.grids=null logger=csv report=false
""".split()
STAGE_1 = f"""
quantizer=ema model.quantizer.codebook_size=64 model.quantizer.init=uniform
model.quantizer.revive_after=null model.base_channels=16 model.channel_multipliers=[1,2]
model.num_residual_blocks=1 perceptual=none training.channels_last=false adversary.start=2
adversary.warmup=1 adversary.ramp=2 adversary.discriminator.base_channels=16
adversary.discriminator.num_layers=2 trainer.max_steps={STEPS}
""".split()
STAGE_2 = [
    *("model.num_layers=2", "model.num_heads=2", "model.embed_dim=32", "model.dropout=0"),
    *("tokens.num_views=1", "callbacks.average.decay=null"),
]
SHOWN = ("loss", "gradient_norm", "reconstruction_loss", "psnr", "codebook_usage")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the trainings and prints a table for each stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("outputs/equality"))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    stage_1 = {f"{n}": output / f"vqgan_{n}" for n in options.processes}
    for n, run_dir in stage_1.items():
        train("train_vqgan", int(n), *COMMON, *STAGE_1, f"run_dir={run_dir}")
    print(table("stage 1", stage_1), end="\n\n")
    settings = [*COMMON, *STAGE_2, f"vqgan={stage_1[str(options.processes[0])]}"]
    settings.append(f"tokens.cache_dir={output / 'tokens'}")
    stage_2 = {f"{n}": output / f"gpt_{n}" for n in options.processes}
    for n, run_dir in stage_2.items():
        steps = f"trainer.max_steps={STEPS}"
        train("train_transformer", int(n), *settings, f"run_dir={run_dir}", steps)
    stage_2["2 split, 1, 2 split"] = run_dir = output / "gpt_split"
    first, second, third = (f"trainer.max_steps={STEPS * part // 4}" for part in (2, 3, 4))
    train("train_transformer", 2, *settings, f"run_dir={run_dir}", first, split=True)
    train("train_transformer", 1, f"resume={run_dir}", second)
    train("train_transformer", 2, f"resume={run_dir}", third, split=True)
    print(table("stage 2", stage_2), end="\n\n")


def train(command: str, processes: int, *settings: str, split: bool = False) -> None:
    """Runs a training command; `split` splits the weights among the processes."""
    gpus = torch.cuda.device_count() >= processes
    trainer = "fsdp" if split else "gpu" if gpus else "cpu"
    devices = [f"trainer={trainer}", f"trainer.accelerator={'gpu' if gpus else 'cpu'}"]
    devices += [f"trainer.devices={processes}", f"data.batch_size={BATCH // processes}"]
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    program = ["-m", "benchmarks.equality", "run", command]
    print(" ".join([command, *devices, *settings[-2:]]), file=sys.stderr)
    subprocess.run(
        [sys.executable, *launch, *program, *devices, *settings], cwd=ROOT, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def run(command: str) -> None:
    """Runs a command like its script, and lets FSDP split weights among CPUs without GPUs."""
    from torch.distributed import fsdp

    from taming.cli import train_transformer, train_vqgan

    class OnCPU(fsdp.FullyShardedDataParallel):
        def __init__(self, *args: object, device_id: object, **settings: object) -> None:
            super().__init__(*args, device_id=torch.device("cpu"), **settings)

    if not torch.cuda.is_available():
        fsdp.FullyShardedDataParallel = OnCPU
    {"train_vqgan": train_vqgan.main, "train_transformer": train_transformer.main}[command]()


def table(title: str, runs: dict[str, Path]) -> str:
    """Tabulates the last numbers of the first run and the differences of the other runs."""
    (first, reference), *rest = ((name, numbers(run_dir)) for name, run_dir in runs.items())
    rows = []
    for key, value in reference.items():
        size = value.abs().max()
        row = {title: key, f"{first} process": f"{size:.6g}"}
        for name, values in rest:
            difference = (values[key] - value).abs().max()
            row[f"{name}: difference"] = f"{difference:.1e} ({difference / size:.0e})"
        rows.append(row)
    return aligned(rows)


def numbers(run_dir: Path) -> dict[str, torch.Tensor]:
    """Returns the last logged numbers, and the weights and the codebook of the model."""
    from taming.report.records import read_run

    metrics = read_run(run_dir).metrics
    results = {
        name: torch.tensor(values[-1], dtype=torch.float64)
        for name, (_, values) in metrics.items()
        if name.split("/")[-1] in SHOWN
    }
    *_, path = sorted((run_dir / "model").rglob("model.safetensors"))  # the transformer is last
    weights = load_file(path)
    if "quantizer.codebook" in weights:
        results["codebook"] = weights["quantizer.codebook"]
    floats = [weight.flatten() for weight in weights.values() if weight.is_floating_point()]
    results["all weights"] = torch.cat(floats)
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        del sys.argv[1]
        run(sys.argv.pop(1))
    else:
        main()
