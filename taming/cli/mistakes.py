"""Mistakes in the command line itself, in plain words: Hydra's own are for its developers."""

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.errors import MissingPathError, UserError

__all__ = ["check_command_line", "check_nothing_missing", "config_directory", "explain"]

# settings of all commands that must lead to something
PATHS = (
    "vqgan",
    "checkpoint",
    "finetune.checkpoint",
    "condition_tokenizer",
    "perceptual.weights",
    "data.path",
    "data.val_path",
    "input",
    "conditions.path",
    "complete.path",
    "classifier",
    "rejection.classifier",
    "frechet.weights",
)
WRITTEN = ("run_dir", "output_dir")  # and those that may
NULLABLE = ("training.health",)  # settings of their own that need not be


def config_directory() -> Path:
    """`configs/` inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def check_command_line(config_name: str, overrides: Sequence[str]) -> None:
    """What needs no imports but Hydra's: names of settings, values to be given, paths.

    Raises:
        UserError: for what a command would refuse, too, if some seconds later.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose(config_name, list(overrides))
    except HydraException as error:
        raise UserError(explain(error, config_name)) from error
    except ValueError as error:  # a group of files given null, a number or a list
        groups = [o for o in overrides if (config_directory() / _key(o)).is_dir()]
        raise UserError(
            f"{' '.join(groups)}: give the name of a file of settings; --help lists them."
        ) from error
    given = {_key(o): o.partition("=")[2] for o in overrides}
    if config.get("resume") is not None:  # all else is the run's own
        _check_path(config, "resume", given["resume"])
        return
    for name, value in given.items():
        if name in (*PATHS, *WRITTEN) and value in ("", "''", '""'):
            raise UserError(f"{name}= is empty: give a path, or leave it out.")
        if value == "null" and name not in NULLABLE and _has_settings(config_name, name):
            raise UserError(f"{name}=null: {name} has settings of its own and cannot be null.")
    check_nothing_missing(config)
    for name in (*PATHS, *WRITTEN):
        _check_path(config, name, given.get(name, ""))


def _has_settings(config_name: str, name: str) -> bool:
    """Whether a setting is a group of others where nothing is given."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return isinstance(OmegaConf.select(compose(config_name), name), DictConfig)


def _check_path(config: DictConfig, name: str, given: str) -> None:
    """Of the value a setting has; `given` is it as the user wrote it."""
    try:
        value = OmegaConf.select(config, name)
    except OmegaConfBaseException:  # what refers to what only the command knows, or nobody
        return
    if name in WRITTEN and name in config and value is None:
        raise UserError(f"{name}=null: it must be a path.")
    if isinstance(value, int | float):
        kind = "true or false" if isinstance(value, bool) else "a number"
        raise UserError(f"{name}={given} is {kind} to Hydra: write '{name}=\"{given}\"'.")
    if not isinstance(value, str) or value.startswith("hf:") or name in WRITTEN:
        return
    try:
        exists = Path(value).expanduser().exists()
    except (OSError, RuntimeError) as error:  # too long a name, a user that is not there
        raise UserError(f"{name}={value} cannot be looked at: {error}.") from error
    if not exists:
        raise MissingPathError(f"{name}={value} does not exist (looked from {Path.cwd()}).")


def check_nothing_missing(config: DictConfig) -> None:
    """Raises a `UserError` that names the values that must be given and are not."""
    missing = sorted(_missing(OmegaConf.to_container(config)))
    if missing:
        example = " ".join(f"{name}=VALUE" for name in missing)
        raise UserError(
            f"these values must be given: {', '.join(missing)}. Add to the command: {example}"
        )


def _missing(value: Any, name: str = "") -> Iterator[str]:
    """Names of the values `???`, but not of those that only refer to one."""
    if value == "???":
        yield name
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _missing(inner, f"{name}.{key}" if name else str(key))


def explain(error: HydraException, config_name: str) -> str:
    """What is wrong with the settings given, and what may have been meant."""
    if isinstance(error, OverrideParseException):
        return (
            f"the setting {error.override} cannot be read. A value with =, commas, brackets, "
            "spaces, signs such as & # ~ or letters such as é goes into two pairs of quotes, one "
            "for the shell and one for Hydra: "
            "'data.path=\"my images, size=64\"'."
        )
    text: str = str(error)
    several = re.match(r"Ambiguous value for argument '([^']+)'", text)
    if several is not None:
        name, _, value = several[1].partition("=")
        return (
            f"{several[1]} has several values: give one; or write '{name}=[{value}]' for a list, "
            f"'{name}=\"{value}\"' for a text with commas."
        )
    missing = re.search(r"Could not find '([^']+)'", text)
    if missing is not None:
        options = re.findall(r"^\t([^\t\n=]+)$", text, re.MULTILINE)
        return f"there is no '{missing[1]}'; there are {', '.join(options) or 'none'}."
    unknown = re.match(r"Could not override '([^']+)'", text) or re.match(
        r"Key '([^']+)' is not in struct", text
    )
    if unknown is None:
        return text
    name = str(unknown[1])
    settings = partial(_settings, config_name)
    given = [o for o in sys.argv[1:] if "=" in o and _key(o) != name]
    choices = [o for o in given if "." not in _key(o)]  # of an option or an experiment, mostly
    known = settings([]) or []
    against = [c for c in choices if name not in (settings([c]) or known)] if name in known else []
    if against:
        return f"{name} does not go with {' and '.join(against)}: leave out one of them."
    there = next(filter(None, map(settings, (given, choices))), known)  # of what is right, the most
    close = difflib.get_close_matches(name, there, n=3)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    if any(_key(o) == "resume" for o in given):
        meant += f" If it is one of the resumed run, write +{name}=VALUE."
    return f"there is no setting {name}.{meant} --help shows all of them."


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")


def _settings(config_name: str, overrides: list[str]) -> list[str] | None:
    """The names of all settings under these overrides; None if one of those is wrong."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            return list(_names(compose(config_name, overrides)))
        except HydraException:
            return None


def _names(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        value = config._get_node(key)
        if isinstance(value, DictConfig):
            yield from _names(value, f"{prefix}{key!s}.")
        else:
            yield f"{prefix}{key!s}"
