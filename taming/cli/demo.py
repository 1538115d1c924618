"""`demo`: runs the whole path on scikit-learn's digits, with the commands that a user runs."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job
from taming.cli.next_command import override, program
from taming.cli.sample import main as sample
from taming.cli.train_transformer import main as train_transformer
from taming.cli.train_vqgan import main as train_vqgan
from taming.runtime.errors import UserError

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="demo", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Trains both stages, samples digits and reports how good they are."""
    import json
    import shutil
    import time

    from taming.cli.data import build_data
    from taming.evaluation.digits import demo_text, report_demo
    from taming.runtime.hardware import product_seconds

    output_dir = Path(config.output_dir)
    unfinished = output_dir / "demo.unfinished"
    if unfinished.exists():  # an interrupted demo starts from the beginning
        for part in ("vqgan", "transformer", "tokens", "samples"):
            shutil.rmtree(output_dir / part, ignore_errors=True)
    elif any(output_dir.iterdir()):
        raise UserError(
            f"{output_dir} holds an earlier demo or other files. Delete it, or give another "
            "output_dir."
        )
    unfinished.touch()
    products = [product_seconds()]
    start = time.monotonic()
    run_commands(config, output_dir)
    data = build_data(config)
    data.setup()
    numbers = report_demo(output_dir, data.train_dataset, data.val_dataset)
    seconds = time.monotonic() - start
    products.append(product_seconds())
    report = {"seconds": seconds, "products": 2 * seconds / sum(products), **numbers}
    (output_dir / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    unfinished.unlink()
    print(demo_text(report, output_dir))
    print(f"""
Your own images, in a folder or a .zip, are next. On a GPU:
  {program("train_vqgan")} data.path=MY_IMAGES run_dir=outputs/my_vqgan
  {program("train_transformer")} vqgan=outputs/my_vqgan data.path=MY_IMAGES \\
      run_dir=outputs/my_transformer
  {program("sample")} checkpoint=outputs/my_transformer
The README has a recipe for a CPU.""")


def run_commands(config: DictConfig, output_dir: Path) -> None:
    """Trains both stages and samples."""
    vqgan, transformer = str(output_dir / "vqgan"), str(output_dir / "transformer")
    seed = override("seed", config.seed)
    run_command(
        train_vqgan,
        "experiment=digits",
        override("run_dir", vqgan),
        seed,
        *config.train_overrides,
    )
    run_command(
        train_transformer,
        "experiment=transformer_digits",
        override("vqgan", vqgan),
        override("tokens.cache_dir", str(output_dir / "tokens")),
        override("run_dir", transformer),
        seed,
        *config.train_overrides,
    )
    run_command(
        sample,
        override("checkpoint", transformer),
        override("num_images", config.num_samples),
        "batch_size=250",
        override("output_dir", str(output_dir / "samples")),
        seed,
    )


def run_command(main: Callable[[], None], *overrides: str) -> None:
    """Prints a command for the terminal, and runs it in its own process.

    Raises:
        UserError: if it fails.
    """
    module = main.__module__
    name = module.rpartition(".")[2]
    print(f"\n$ {program(name)} {shlex.join(overrides)}", flush=True)
    script = f"import sys; sys.argv[0] = {sys.argv[0]!r}; from {module} import main; main()"
    python = [sys.executable, "-P"]  # imports nothing from the working directory
    status = subprocess.run([*python, "-c", script, *overrides], check=False).returncode
    if status != 0:
        raise UserError(f"{name} ended with status {status}; see above.")
