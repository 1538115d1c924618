"""`demo`: the whole path on scikit-learn's digits, by the commands a user runs."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import program
from taming.cli.data import build_data
from taming.cli.hints import override
from taming.evaluation.digits import report_digits
from taming.runtime.errors import UserError
from taming.runtime.hardware import product_seconds

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Trains both stages, samples digits and reports how good they are."""
    output_dir = Path(config.output_dir)
    unfinished = output_dir / "demo.unfinished"
    if unfinished.exists():  # a demo that was broken off is begun anew
        for part in ("vqgan", "transformer", "tokens", "samples"):
            shutil.rmtree(output_dir / part, ignore_errors=True)
    elif any(output_dir.iterdir()):
        raise UserError(
            f"{output_dir} holds an earlier demo or other files: delete it, or give another "
            "output_dir."
        )
    unfinished.touch()
    product = [product_seconds()]
    started = time.monotonic()
    run_commands(config, output_dir)
    numbers = measure(config, output_dir)
    seconds = time.monotonic() - started
    product.append(product_seconds())
    report = {"seconds": seconds, "products": 2 * seconds / sum(product), **numbers}
    (output_dir / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    unfinished.unlink()
    print(summary(report, output_dir))


def run_commands(config: DictConfig, output_dir: Path) -> None:
    """Runs both trainings and the sampling."""
    vqgan, transformer = str(output_dir / "vqgan"), str(output_dir / "transformer")
    seed = override("seed", config.seed)
    run_command(
        "train_vqgan",
        "experiment=digits",
        override("run_dir", vqgan),
        seed,
        *config.train_overrides,
    )
    run_command(
        "train_transformer",
        "experiment=transformer_digits",
        override("vqgan", vqgan),
        override("tokens.cache_dir", str(output_dir / "tokens")),
        override("run_dir", transformer),
        seed,
        *config.train_overrides,
    )
    run_command(
        "sample",
        override("checkpoint", transformer),
        override("num_images", config.num_samples),
        "batch_size=250",
        override("output_dir", str(output_dir / "samples")),
        seed,
    )


def measure(config: DictConfig, output_dir: Path) -> dict[str, float]:
    """Returns the numbers of both runs and of the sampled digits; see `report_digits`."""
    data = build_data(config)
    data.setup()
    samples = output_dir / "samples" / "samples.npz"
    digits = report_digits(samples, data.train_dataset, data.val_dataset)
    stage_1, stage_2 = (
        json.loads((output_dir / run / "result.json").read_text())["metrics"]
        for run in ("vqgan", "transformer")
    )
    return {
        "psnr": stage_1["val/psnr"],
        "codebook_usage": stage_1["val/codebook_usage"],
        "bits_per_token": stage_2["val/bits_per_token"],
        **digits,
    }


def summary(report: dict[str, float], output_dir: Path) -> str:
    """Returns the report in words, and what comes next."""
    return f"""
The demo took {report["seconds"]:.0f} s, as long as {report["products"]:.0f} products of two \
2048×2048 matrices. On new digits:
  reconstructions     {report["psnr"]:.1f} dB PSNR, {report["codebook_usage"]:.0%} of the codes used
  transformer         {report["bits_per_token"]:.3f} bits per token
  {report["num_samples"]} sampled digits  an SVM sees the requested digit in \
{report["agreement"]:.1%} (in {report["svm_accuracy"]:.1%} of real ones);
                      distance to the nearest training image {report["distance_ratio"]:.2f} of a \
new real digit's
It wrote under {output_dir}/:
  samples/samples.png  the sampled digits: look at them
  samples/samples.npz  the same as numbers
  vqgan/, transformer/ the two runs: model/, checkpoints/, metrics.csv, grids/ …
  report.json          the numbers above

Your own images, in a folder or a .zip, are next. On a GPU:
  {program("train_vqgan")} data.path=MY_IMAGES run_dir=outputs/my_vqgan
  {program("train_transformer")} vqgan=outputs/my_vqgan data.path=MY_IMAGES \\
      run_dir=outputs/my_transformer
  {program("sample")} checkpoint=outputs/my_transformer
The README has a recipe for a CPU."""


def run_command(script: str, *overrides: str) -> None:
    """Runs a command as a user would, after showing it.

    Raises:
        UserError: if it fails.
    """
    print(f"\n$ {program(script)} {shlex.join(overrides)}", flush=True)
    start = f"from taming.cli import console; console({script!r})"
    status = subprocess.run([sys.executable, "-c", start, *overrides], check=False).returncode
    if status != 0:
        raise UserError(f"{script} ended with status {status}; see above.")
