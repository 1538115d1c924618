"""What all commands share: where configs are, how errors look, how a run directory begins."""

import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.cli.mistakes import check_nothing_missing, config_directory, explain
from taming.cli.setting_types import check_types
from taming.errors import MissingPathError, UserError

__all__ = [
    "begin_run",
    "build",
    "check_run_dir",
    "command",
    "config_directory",
    "device",
    "is_first_process",
    "program",
    "resolved",
    "resume_config",
    "run_command",
    "set_seed",
    "write_config",
]

log = logging.getLogger("taming")

COMPOSED_FILE, RESOLVED_FILE = "config_composed.yaml", "config.yaml"


def is_first_process() -> bool:
    """Whether this is the process the user started, and not a rank that was launched beside it."""
    return getattr(rank_zero_only, "rank", 0) == 0  # set by Lightning when it is imported


def program(name: str) -> str:
    """How the user calls a command: by script in a checkout, by its own name where installed."""
    if Path(sys.argv[0]).suffix == ".py":
        return f"python scripts/{name}.py"
    return f"taming-{name.replace('_', '-')}"


def set_seed(seed: int) -> None:
    """Seeds everything.

    Raises:
        UserError: for a seed that is not a whole number from 0 on.
    """
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number, 0 or more, not {seed}.")
    L.seed_everything(seed, workers=True, verbose=False)


def device(name: str) -> torch.device:
    """The device a configuration names; `auto` is a GPU if there is one.

    Raises:
        UserError: if PyTorch knows no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return found


def command(config_name: str) -> Callable[[Callable[[DictConfig], int | None]], Callable[[], None]]:
    """Makes a function of a Hydra configuration a command.

    What the user can put right is printed as one line on standard error, with exit status 2. The
    function returns its exit status, None for 0.
    """

    def decorate(function: Callable[[DictConfig], int | None]) -> Callable[[], None]:
        def run(config: DictConfig) -> None:
            logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
            try:
                status = function(config)
            except (UserError, OmegaConfBaseException) as error:
                print(f"error: {_message(error)}", file=sys.stderr)
                sys.exit(2)
            except KeyboardInterrupt:
                print("\ninterrupted", file=sys.stderr)
                sys.exit(130)
            sys.exit(status or 0)

        def main() -> None:
            decorator = hydra.main(
                config_path=str(config_directory()), config_name=config_name, version_base="1.3"
            )
            # Hydra then raises what it would otherwise print with advice that does not help
            os.environ.setdefault("HYDRA_FULL_ERROR", "1")
            try:
                decorator(run)()
            except HydraException as error:
                message = explain(error, config_name)
                print(f"error: {message}", file=sys.stderr)
                sys.exit(2)

        main.__doc__ = function.__doc__
        return main

    return decorate


def _message(error: Exception) -> str:
    """What an error says; of one in a data loader's worker without PyTorch's traceback."""
    in_worker = re.match(
        r"Caught \w+ in DataLoader worker.*\n[\w.]+Error: (.*)", str(error), re.DOTALL
    )
    return str(error) if in_worker is None else str(in_worker[1]).strip()


def build(config: DictConfig, /, **arguments: Any) -> Any:
    """Calls a configuration's `_target_` with plain Python values; None for one without.

    Raises:
        UserError: naming the target, if an argument is unknown, missing or wrong.
    """
    if config is None or config.get("_target_") is None:
        return None
    check_types(config)
    try:
        return hydra.utils.instantiate(config, **arguments, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, TypeError | ValueError):
            raise UserError(f"configuration of {config._target_}: {cause}.") from error
        raise


def resolved(config: DictConfig) -> dict[str, Any]:
    """The configuration as a plain dictionary, interpolations resolved.

    Raises:
        UserError: naming the values that must be given and are not.
    """
    check_nothing_missing(config)
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def resume_config(config: DictConfig) -> DictConfig:
    """The configuration of the run in `config.resume`, with this command line's overrides on top.

    Raises:
        MissingPathError: if that is not a run directory.
        UserError: for an override of what is fixed once a run has begun.
    """
    run_dir = Path(config.resume).expanduser()
    path = run_dir / COMPOSED_FILE
    if not path.is_file():
        raise MissingPathError(
            f"nothing to resume: {path} does not exist. resume= takes the directory of a run."
        )
    saved = OmegaConf.load(path)
    assert isinstance(saved, DictConfig)
    if saved.trainer.max_time is not None:
        log.info("note: trainer.max_time=%s was for one session", saved.trainer.max_time)
        saved.trainer.max_time = None
    given = {o.split("=", 1)[0].lstrip("+"): o for o in HydraConfig.get().overrides.task}
    for name in sorted(given.keys() - {"resume"}, key=lambda name: name.count(".")):
        _override(saved, config, name, given[name])
    saved.run_dir = str(run_dir)
    saved.resume = str(run_dir)
    return saved


def _override(saved: DictConfig, config: DictConfig, name: str, override: str) -> None:
    """Takes one override of `config` over into a saved configuration."""
    fixed = (
        "experiment",
        "size",
        "run_dir",
        "vqgan",
        "conditioning",
        "condition_tokenizer",
        "condition_cell",
        "condition_dropout",
        "condition_as",
        "model",
        "quantizer",
        "data",
        "adversary",
        "training.ema_decay",
    )
    beginnings = ("~", "size/", "model.", "perceptual", "finetune", "adversary.discriminator")
    # what fits the model, and which images are trained on; validation images may have moved
    of_data = [f"data.{key}" for key in ("resolution", "channels", "val_fraction", "labels")]
    before, now = OmegaConf.select(saved, name), OmegaConf.select(config, name)
    changed = (name in of_data and before != now) or (
        name == "data.val_path" and (before is None) != (now is None)
    )
    if name in fixed or name.startswith(beginnings) or changed:
        raise UserError(
            f"resume= continues the run with its own configuration: {override} cannot be combined "
            "with it. Single values such as trainer.max_steps=…, trainer=… and logger=… can."
        )
    group = OmegaConf.select(saved, name.split(".")[0])
    if "." in name and (group is None or ("_target_" in group and group._target_ is None)):
        raise UserError(f"{override} would do nothing: the run has no {name.split('.')[0]}.")
    names = [f"trainer.{key}" for key in ("accelerator", "devices", "strategy")]
    for key in names if name == "trainer" else [name]:
        OmegaConf.update(saved, key, OmegaConf.select(config, key), merge=False, force_add=True)


def check_run_dir(config: DictConfig) -> None:
    """Raises a `UserError` if a new run's directory holds another run already."""
    run_dir = Path(config.run_dir).expanduser()
    begun = (run_dir / "checkpoints" / "last.ckpt").exists() or (run_dir / "model").exists()
    if config.resume is None and begun and is_first_process():
        raise UserError(
            f"{run_dir} holds a run already. Continue it with resume={run_dir}, or give another "
            "run_dir."
        )


def begin_run(config: DictConfig) -> Path:
    """Makes a new run's directory, with its configuration; returns it, of a resumed run too.

    Raises:
        UserError: if the directory cannot be written.
    """
    run_dir = Path(resolved(config)["run_dir"]).expanduser()
    if config.resume is None and is_first_process():
        write_config(config, run_dir)
    return run_dir


def write_config(config: DictConfig, run_dir: Path) -> None:
    """Writes a run's configuration into its directory, as composed and resolved.

    Of a resumed run only when it is under way: a setting that stops it is not to stay.

    Raises:
        UserError: if the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, run_dir / COMPOSED_FILE)
        OmegaConf.save(OmegaConf.create(resolved(config)), run_dir / RESOLVED_FILE)
    except OSError as error:
        raise UserError(f"the run directory {run_dir} cannot be written: {error}.") from error


def run_command(script: str, *overrides: str) -> None:
    """Runs a command as a user would, after showing it.

    Raises:
        UserError: if it does not end well.
    """
    print(f"\n$ python scripts/{script}.py {shlex.join(overrides)}", flush=True)
    module = f"taming.cli.{script}"
    status = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *overrides], check=False
    ).returncode
    if status != 0:
        raise UserError(f"{script} ended with status {status}; see above.")
