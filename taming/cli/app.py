"""Shared by all commands: building what a configuration names, run directories, resuming."""

import atexit
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import torch
import torch.distributed as dist
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.cli.mistakes import COMPOSED_FILE, config_directory, settings_in
from taming.cli.setting_types import check_types
from taming.runtime.errors import UserError, replacing, writing
from taming.runtime.nested import leaves
from taming.runtime.process_group import on_first_rank, rank

__all__ = ["RESOLVED_FILE", "build", "build_all", "check_origin", "config_directory",
    "config_of_run", "find_device", "join_processes", "load_resolved_config", "load_saved_config",
    "program", "quiet_others", "resolved", "resume_config", "take_up_config",
    "write_config"]  # fmt: skip

log = logging.getLogger("taming")

RESOLVED_FILE = "config.yaml"  # in a run directory

# what a resumed run keeps: its model, and which images it is trained on
FIXED = ("~*", "adversary", "adversary.discriminator*", "callbacks.average.decay", "condition_*",
    "conditioning", "data", "data.channels", "data.resolution", "data.source",
    "data.source.labels", "data.source.num_val_images", "data.source.shuffle_buffer",
    "data.source.split", "data.source.val_split", "data.val_fraction", "experiment", "finetune*",
    "model*", "perceptual*", "quantizer*", "recipe", "run_dir", "seed", "size*",
    "vqgan")  # fmt: skip
# what a training settles where it is left open
FOUND = ("data.channels", "data.resolution", "trainer.precision", "training.channels_last",
    "training.compile")  # fmt: skip
# references to other settings and the time: all that a saved configuration may refer to; a name in
# one may be a reference itself, as in ${data.${data.condition}}
REFERENCE = re.compile(r"\$\{(?:now:[^${}\\]*|[\w.]+)\}")


def program(name: str) -> str:
    """Returns how the user calls a command: a script in a checkout, else its installed name."""
    if Path(sys.argv[0]).suffix == ".py":
        return f"python scripts/{name}.py"
    return f"taming-{name.replace('_', '-')}"


def join_processes(config: DictConfig) -> None:
    """Connects this process with the others of a `torchrun`; the first one speaks for all."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=timedelta(days=1))  # they wait while the first one prepares
    atexit.register(dist.destroy_process_group)
    quiet_others()
    if "output_dir" in config:
        config.output_dir = on_first_rank(lambda: config.output_dir)  # the time may be in it


def quiet_others() -> None:
    """Leaves what is printed and logged, up to warnings, to the first process."""
    if rank() > 0:
        logging.getLogger("taming").setLevel(logging.WARNING)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


def find_device(name: str) -> torch.device:
    """Returns the named device; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return found


def build(config: DictConfig | None, /, **arguments: Any) -> Any:
    """Builds the `_target_` of a configuration from plain Python values; None without one."""
    if config is None or config.get("_target_") is None:
        return None
    check_types(config)
    try:
        return hydra.utils.instantiate(config, **arguments, _convert_="all")
    except InstantiationException as error:
        # slow to import: only where it is used
        from lightning.pytorch.utilities.exceptions import MisconfigurationException

        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, ImportError):  # Hydra's, in several lines
            cause = cause.__cause__ or cause
        elif not isinstance(cause, TypeError | ValueError | MisconfigurationException):
            raise
        why = " ".join(str(cause).split())
        raise UserError(f"configuration of {config._target_}: {why}.") from error


def build_all(config: DictConfig | None) -> list[Any]:
    """Builds the entries of a group such as `callbacks`, except those that are null."""
    built = []
    for name, entry in (config or {}).items():
        if entry is not None and not (isinstance(entry, DictConfig) and "_target_" in entry):
            key = config._get_full_key(name)  # type: ignore[union-attr]
            raise UserError(f"{key} needs a _target_: give {key}._target_=MODULE.CLASS, or null.")
        built.append(build(entry))
    return [thing for thing in built if thing is not None]


def resolved(config: DictConfig) -> dict[str, Any]:
    """Returns the configuration as a plain dictionary, its interpolations resolved."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def resume_config(config: DictConfig) -> DictConfig:
    """Returns the configuration of the run in `config.resume`, with this command line's overrides.

    Raises:
        UserError: if an override changes what is fixed once a run has begun; and as
            `load_saved_config` and `check_origin`.
    """
    run_dir = Path(config.resume).expanduser()
    path = run_dir / COMPOSED_FILE
    saved = load_saved_config(path)
    check_origin(saved, config, path)
    max_time = OmegaConf.select(saved, "trainer.max_time")
    if max_time is not None:
        log.info("note: trainer.max_time=%s was for one session", max_time)
        saved.trainer.max_time = None
    given = {o.split("=", 1)[0].lstrip("+"): o for o in HydraConfig.get().overrides.task}
    for name in sorted(given.keys() - {"resume"}, key=lambda name: name.count(".")):
        _override(saved, config, name, given[name])
    saved.run_dir = saved.resume = str(run_dir)
    return saved


def _override(saved: DictConfig, config: DictConfig, name: str, override: str) -> None:
    """Copies what one override has set in `config` into a saved configuration."""
    before, now = OmegaConf.select(saved, name), OmegaConf.select(config, name)
    if "." in name and before is not None and before == now:
        return
    if _is_fixed(name, before, now):
        raise UserError(
            f"resume= continues the run with its own configuration: {override} cannot be combined "
            "with it, for a run keeps its model and its images. Others can be changed, such as "
            "trainer.max_steps=… and logger=…."
        )
    if "." in name and not override.startswith("+"):
        group = OmegaConf.select(saved, name.split(".")[0])
        if not group or ("_target_" in group and group._target_ is None):
            raise UserError(f"{override} would do nothing: the run has no {name.split('.')[0]}.")
    names = [f"trainer.{key}" for key in ("accelerator", "devices", "num_nodes", "strategy")]
    for key in names if name == "trainer" else [name]:
        OmegaConf.update(saved, key, OmegaConf.select(config, key), merge=False, force_add=True)


def _is_fixed(name: str, before: Any, now: Any) -> bool:
    """Returns whether a change would be of the model, or of which images it is trained on."""
    appears = name == "data.val_path" and (before is None) != (now is None)
    return appears or any(fnmatch(name, fixed) for fixed in FIXED)


def take_up_config(config: DictConfig) -> DictConfig:
    """Returns this command's configuration for the run that stands in its directory.

    What the command leaves to be found, the run has found already.

    Raises:
        UserError: if it changes what is fixed once a run has begun.
    """
    run_dir = Path(config.run_dir)
    saved = dict(settings_in(load_saved_config(run_dir / COMPOSED_FILE)))
    given = dict(settings_in(config))
    for key in {**given, **saved}:
        before, now = saved.get(key), given.get(key)
        if key == "run_dir" or before == now:
            continue
        if key in FOUND and now in ("auto", None):
            OmegaConf.update(config, key, saved.get(key, now), force_add=True)
        elif _is_fixed(key.removesuffix("._target_"), before, now):
            raise UserError(
                f"the run in {run_dir} was begun with {key}={before}, and now it is {now}: "
                "give what it was begun with, or another run_dir."
            )
    config.resume = str(run_dir)
    return config


def load_saved_config(path: Path) -> DictConfig:
    """Reads a configuration that a run, perhaps a stranger's, or another program has saved.

    Raises:
        UserError: if it refers to anything beyond itself, such as variables of the environment.
    """
    try:
        saved = OmegaConf.load(path)
        settings = OmegaConf.to_container(saved)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error
    if not isinstance(saved, DictConfig):
        raise UserError(f"{path} holds no settings by name.")
    for key, text in leaves(settings):
        rest, found = (text, 1) if isinstance(text, str) and "${" in text else ("", 0)
        while found:
            rest, found = REFERENCE.subn("x", rest)
        if "$" in rest:
            raise UserError(
                f"{path}: {key}={text} looks beyond the file: write the value itself there."
            )
    return saved


def config_of_run(path: str) -> DictConfig:
    """Returns the configuration of the run that a path belongs to; an empty one if there is none.

    The path is a run directory, its model/ or a part of it, or one of its checkpoints.
    """
    place = Path(path).expanduser().absolute()
    inside = ("model", "checkpoints")
    runs = [run for run in place.parents[:2] if place.relative_to(run).parts[0] in inside]
    for directory in (place, *runs):
        if (directory / RESOLVED_FILE).is_file():
            return load_saved_config(directory / RESOLVED_FILE)
    return OmegaConf.create()


def load_resolved_config(path: Path) -> dict[str, Any]:
    """Reads a saved configuration as `load_saved_config` does, and follows its references."""
    saved = load_saved_config(path)
    try:
        return resolved(saved)
    except OmegaConfBaseException as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error


def check_origin(saved: DictConfig, given: DictConfig, path: Path) -> None:
    """Checks a saved configuration, all of which may be built; it is from the file at `path`.

    Raises:
        UserError: if it would call anything that neither the packaged configurations nor this
            command's, `given`, name.
    """
    if (stranger := next(_strangers(saved, given), None)) is not None:
        raise UserError(
            f"{path} names {stranger}, which is none of this program's: it is not run. If you "
            f"trust it, add {shlex.quote(f'++{stranger}')} to the command."
        )


def _strangers(saved: DictConfig, given: DictConfig) -> Iterator[str]:
    trusted = {*_packaged_targets(), *(target for _, target in _targets(given))}
    for key, target in _targets(saved):
        if "$" in target or target not in trusted:
            yield f"{key}={target}"


@cache
def _packaged_targets() -> frozenset[str]:
    configs = map(OmegaConf.load, config_directory().rglob("*.yaml"))
    return frozenset(target for config in configs for _, target in _targets(config))


def _targets(config: DictConfig | ListConfig) -> Iterator[tuple[str, str]]:
    """Yields every `_target_` in a configuration, at any depth, as (key, target)."""
    for key, value in leaves(OmegaConf.to_container(config)):
        if key.rpartition(".")[2].startswith("_target_") and value is not None:
            yield key, str(value)


def write_config(config: DictConfig) -> None:
    """Writes a run's configuration into its directory, as composed and resolved."""
    run_dir = Path(config.run_dir)
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        plain = OmegaConf.create(resolved(config))
        for name, content in ((COMPOSED_FILE, config), (RESOLVED_FILE, plain)):
            with replacing(run_dir / name, encoding="utf-8") as file:
                OmegaConf.save(content, file)
