"""The configurations that runs save: reading them safely, and resuming with them."""

import logging
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.cli.build import resolved
from taming.cli.mistakes import COMPOSED_FILE, config_directory, settings_in, targets_in
from taming.cli.settings import Trait, has_trait
from taming.runtime.errors import UserError, escapes, replacing, writing
from taming.runtime.nested import leaves

__all__ = ["RESOLVED_FILE", "check_origin", "config_of_run", "load_resolved_config",
    "load_saved_config", "resume_config", "resume_same_command", "write_config"]  # fmt: skip

log = logging.getLogger("taming")

RESOLVED_FILE = "config.yaml"  # in a run directory

# A saved configuration may refer to other settings and to the time, and to nothing else. A name may
# contain a reference, as in ${data.${data.condition}}.
REFERENCE = re.compile(r"\$\{(?:now:[^${}\\]*|[\w.]+)\}")


def write_config(config: DictConfig) -> None:
    """Writes a run's configuration into its directory, as composed and resolved."""
    run_dir = Path(config.run_dir)
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        plain = OmegaConf.create(resolved(config))
        for name, content in ((COMPOSED_FILE, config), (RESOLVED_FILE, plain)):
            with replacing(run_dir / name, encoding="utf-8") as file:
                OmegaConf.save(content, file)


def load_saved_config(path: Path) -> DictConfig:
    """Reads a configuration that a run, which need not be trusted, or another program has saved.

    Raises:
        UserError: if it refers to anything beyond itself, such as environment variables.
    """
    try:
        saved_config = OmegaConf.load(path)
        settings = OmegaConf.to_container(saved_config)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error
    if not isinstance(saved_config, DictConfig):
        raise UserError(f"{path} is not a configuration file, because its settings have no names.")
    for key, text in leaves(settings):
        rest, count = (text, 1) if isinstance(text, str) and "${" in text else ("", 0)
        while count:
            rest, count = REFERENCE.subn("x", rest)
        if "$" in rest:
            raise UserError(
                f"{path}: {key}={text} refers to something outside the file. "
                "Replace it with a value."
            )
    return saved_config


def load_resolved_config(path: Path) -> dict[str, Any]:
    """Reads a saved configuration as `load_saved_config` does, and follows its references."""
    saved_config = load_saved_config(path)
    try:
        return resolved(saved_config)
    except OmegaConfBaseException as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error


def config_of_run(path: str) -> DictConfig:
    """Returns the configuration of the run that a path belongs to; an empty one without a run.

    The path is a run directory, its `model/` or a part of it, or one of its checkpoints.
    """
    place = Path(path).expanduser().absolute()
    inside = ("model", "checkpoints")
    runs = [run for run in place.parents[:2] if place.relative_to(run).parts[0] in inside]
    for directory in (place, *runs):
        if (directory / RESOLVED_FILE).is_file():
            return load_saved_config(directory / RESOLVED_FILE)
    return OmegaConf.create()


def check_origin(saved_config: DictConfig, command_config: DictConfig, path: Path) -> None:
    """Checks a saved configuration before anything in it is built.

    Args:
        saved_config: the configuration, with this command's overrides.
        command_config: the command's own configuration.
        path: the file in the run directory that `saved_config` was read from.

    Raises:
        UserError: if it calls anything that neither the packaged configurations nor the command's
            own contain, or writes outside the run directory to a place that the command does not
            name.
    """
    if (setting := next(_untrusted_settings(saved_config, command_config), None)) is not None:
        raise UserError(
            f"{path} contains {setting}, which does not belong to this version of the program and "
            "is not run. If an older version wrote the file, use that version. If you trust it, "
            f"add {shlex.quote(f'++{setting}')} to the command."
        )
    settings = dict(leaves(OmegaConf.to_container(command_config)))
    for name, value in _leaves_with_references(saved_config):
        if isinstance(value, str) and value != settings.get(name):
            if has_trait(name, Trait.PLACE):
                place = os.path.expanduser(value)  # noqa: PTH111 (never raises)
                is_inside = not escapes(Path(place), path.parent) and "://" not in value
            else:
                is_inside = not (has_trait(name, Trait.FILE_NAME) and _leads_away(value))
            if not is_inside:
                raise UserError(
                    f"{path} contains {name}={value}, which leads out of the run directory. If you "
                    f"want the run to write there, add {shlex.quote(f'++{name}={value}')} to the "
                    "command."
                )


def _untrusted_settings(saved_config: DictConfig, command_config: DictConfig) -> Iterator[str]:
    trusted = {*_packaged_targets(), *(target for _, target in targets_in(command_config))}
    for key, target in targets_in(saved_config):
        if "$" in target or target not in trusted:
            yield f"{key}={target}"
    settings = dict(leaves(OmegaConf.to_container(command_config)))
    for name, value in leaves(OmegaConf.to_container(saved_config)):
        if "_args_" in name.split(".") and value != settings.get(name):  # arguments without names
            yield f"{name}={value}"


def _leaves_with_references(
    config: DictConfig | ListConfig, name: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields every value in a configuration with its full name, and follows references."""
    keys: Any = config if isinstance(config, DictConfig) else range(len(config))
    for key in keys:
        full_name = f"{name}.{key}" if name else str(key)
        with suppress(OmegaConfBaseException):  # a reference to nothing, which nobody can build
            value = config[key]
            if not OmegaConf.is_config(value):
                yield full_name, value
            elif not OmegaConf.is_interpolation(config, key):  # or else it has another name
                yield from _leaves_with_references(value, full_name)


def _leads_away(name: str) -> bool:
    """Returns whether a file's name, or a pattern such as `{step}-{val/loss:.2f}`, is a path away.

    Fields in unusual formats count too, because `{step:c}` can be a dot or a slash.
    """
    name = re.sub(r"\{\w[\w/]*(:[\d.]*[defg]?)?\}", "x", name)
    return "{" in name or Path(name).is_absolute() or ".." in Path(name).parts


@cache
def _packaged_targets() -> frozenset[str]:
    configs = map(OmegaConf.load, config_directory().rglob("*.yaml"))
    return frozenset(target for config in configs for _, target in targets_in(config))


def resume_config(config: DictConfig) -> DictConfig:
    """Returns the configuration of the run in `config.resume`, with this command line's overrides.

    Raises:
        UserError: if an override changes what a resumed run keeps; and as `load_saved_config` and
            `check_origin`.
    """
    run_dir = Path(config.resume).expanduser()
    path = run_dir / COMPOSED_FILE
    saved_config = load_saved_config(path)
    max_time = OmegaConf.select(saved_config, "trainer.max_time")
    if max_time is not None:
        log.info("note: trainer.max_time=%s applied only to the earlier session", max_time)
        saved_config.trainer.max_time = None
    overrides = {o.split("=", 1)[0].lstrip("+"): o for o in HydraConfig.get().overrides.task}
    for name in sorted(overrides.keys() - {"resume"}, key=lambda name: name.count(".")):
        _override(saved_config, config, name, overrides[name])
    saved_config.run_dir = saved_config.resume = str(run_dir)
    check_origin(saved_config, config, path)
    return saved_config


def _override(saved_config: DictConfig, config: DictConfig, name: str, override: str) -> None:
    """Copies the setting that one override has changed from `config` into `saved_config`."""
    before, now = OmegaConf.select(saved_config, name), OmegaConf.select(config, name)
    if "." in name and before is not None and before == now:
        return
    if _is_fixed(name, before, now):
        raise UserError(
            f"{override} cannot be combined with resume=, because a resumed run keeps its model "
            "and its images. Other settings can change, such as trainer.max_steps=… and logger=…."
        )
    if "." in name and not override.startswith("+"):
        group = OmegaConf.select(saved_config, name.split(".")[0])
        if not group or ("_target_" in group and group._target_ is None):
            raise UserError(f"{override} has no effect: the run has no {name.split('.')[0]}.")
    names = [f"trainer.{key}" for key in ("accelerator", "devices", "num_nodes", "strategy")]
    for key in names if name == "trainer" else [name]:
        value = OmegaConf.select(config, key)
        OmegaConf.update(saved_config, key, value, merge=False, force_add=True)


def resume_same_command(config: DictConfig) -> DictConfig:
    """Returns this command's configuration for resuming the run in its directory.

    The run's own choice replaces each setting that the command leaves to be chosen.

    Raises:
        UserError: if the command changes what a resumed run keeps.
    """
    run_dir = Path(config.run_dir)
    saved_settings = dict(settings_in(load_saved_config(run_dir / COMPOSED_FILE)))
    settings = dict(settings_in(config))
    for key in {**settings, **saved_settings}:
        before, now = saved_settings.get(key), settings.get(key)
        if key == "run_dir" or before == now:
            continue
        if has_trait(key, Trait.CHOSEN_ONCE) and now in ("auto", None):
            OmegaConf.update(config, key, saved_settings.get(key, now), force_add=True)
        elif _is_fixed(key.removesuffix("._target_"), before, now):
            raise UserError(
                f"the run in {run_dir} started with {key}={before}, but the command has {now}. "
                "Restore the original value, or give another run_dir."
            )
    config.resume = str(run_dir)
    return config


def _is_fixed(name: str, before: Any, now: Any) -> bool:
    """Returns whether a change affects the model or the choice of training images."""
    adds_split = name == "data.val_path" and (before is None) != (now is None)
    return adds_split or has_trait(name, Trait.FIXED)
