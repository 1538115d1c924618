"""Checks the command line and explains mistakes in it, without importing PyTorch."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.cli.settings import TABLE, Trait
from taming.runtime.errors import MissingPathError, UserError, printable
from taming.runtime.nested import leaves

__all__ = ["COMPOSED_FILE", "check_config", "check_overrides", "config_directory", "exit_with",
    "settings_in", "targets_in"]  # fmt: skip

COMPOSED_FILE = "config_composed.yaml"  # a run is resumed with it

# why a place cannot be written to
UNWRITABLE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST)


def config_directory() -> Path:
    """Returns `configs/`, which is inside an installed package and next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def check_overrides(overrides: Sequence[Override]) -> None:
    """Checks that paths and names of options are strings to Hydra."""
    inputs, outputs = TABLE[Trait.INPUT], TABLE[Trait.OUTPUT]
    for override in overrides:
        name, value = override.key_or_group, override.value()
        if override.is_delete() or override.is_sweep_override():
            continue
        if name in inputs + outputs:
            if value == "" or (value is None and name in outputs and name != "resume"):
                raise UserError(f"{override.input_line}: give a path, or leave it out.")
            if isinstance(value, int | float):
                text = str(override.input_line).partition("=")[2]
                advice = f"Write '{name}=\"{text}\"'."
                raise UserError(f"Hydra reads {name}={text} as a number. {advice}")
        elif (config_directory() / name).is_dir() and not isinstance(value, str | list | dict):
            raise UserError(f"{override.input_line}: give one of the options of {name}.")


def check_config(config: DictConfig) -> None:
    """Checks that no value is missing and that all input paths exist."""
    if config.get("resume") not in (None, "auto"):  # everything else comes from the run
        path = Path(config.resume).expanduser() / COMPOSED_FILE
        if not path.is_file():
            raise MissingPathError(
                f"nothing to resume: {path} does not exist. resume= takes the directory of a run."
            )
        return
    missing = sorted(key for key, value in settings_in(config) if value == "???")
    if missing:
        example = " ".join(f"{name}=VALUE" for name in missing)
        raise UserError(
            f"required settings are missing: {', '.join(missing)}. Add to the command: {example}"
        )
    if config.get("resume") == "auto" and "${now:" in dict(settings_in(config))["run_dir"]:
        raise UserError("resume=auto needs the same directory each time. Give run_dir=…")
    for name in TABLE[Trait.INPUT]:
        value = OmegaConf.select(config, name, throw_on_resolution_failure=False)
        if not isinstance(value, str) or re.match(r"hf:|\w+://", value):
            continue
        if set(value) & set("*?[{"):  # a pattern, which its reader expands
            continue
        if not os.path.exists(os.path.expanduser(value)):  # noqa: PTH110, PTH111 (never raises)
            raise MissingPathError(f"{name}={value} does not exist (looked from {Path.cwd()}).")


def exit_with(error: Exception, config_name: str) -> NoReturn:
    """Prints an error that the user can fix, without a traceback, and exits with status 2.

    Raises:
        Exception: `error` itself, if the user cannot fix it.
    """
    message = str(error)
    if isinstance(error, HydraException):
        message = _explain(error, config_name)
    elif type(error).__name__ == "OutOfMemoryError":  # PyTorch's
        notes = getattr(error, "__notes__", ["Give a smaller batch_size."])
        reason = message.splitlines()[0]
        message = f"the GPU has too little memory ({reason}). {' '.join(notes)}"
    elif message.startswith("DataLoader worker"):
        message = (
            f"a process that loads images has died ({message.strip(' .')}). If memory was short, "
            "use fewer of them: data.loader.num_workers=1, or 0 for none."
        )
    elif not isinstance(error, UserError | OmegaConfBaseException) and (
        getattr(error, "errno", None) not in UNWRITABLE
    ):
        raise error
    # PyTorch puts its traceback into the message of an error in a data loader's worker
    in_worker = re.match(
        r"Caught \w+ in DataLoader worker.*\n[\w.]+Error: (.*)", message, re.DOTALL
    )
    message = message if in_worker is None else in_worker[1].strip()
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _explain(error: HydraException, config_name: str) -> str:
    """Says what is wrong with the overrides, and what the user may have meant."""
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return (
            f"{error.override} has no value. Settings are NAME=VALUE. A value with spaces needs "
            "two pairs of quotes: 'data.path=\"my images\"'."
        )
    if isinstance(error, OverrideParseException):
        return (
            f"the setting {error.override} cannot be read. Is each quote closed? A value with "
            "spaces, characters such as = , [ & # ~ or letters such as é needs two pairs of "
            "quotes, one for the shell and one for Hydra: 'data.path=\"my images, size=64\"'."
        )
    text = str(error)
    if ambiguous := re.match(r"Ambiguous value for argument '([^']+)'", text):
        name, _, value = ambiguous[1].partition("=")
        return (
            f"{ambiguous[1]} has several values. Add --multirun to run each of them, or write "
            f"'{name}=[{value}]' for a list or '{name}=\"{value}\"' for text with commas."
        )
    if missing := re.search(r"Could not find '([^']+)'", text):
        options = re.findall(r"^\t([^\t\n=]+)$", text, re.MULTILINE)
        plugin = missing[1].startswith("hydra/")
        hint = " Is its plugin installed? See the file." if plugin else ""
        return f"there is no '{missing[1]}'; there are {', '.join(options) or 'none'}.{hint}"
    unknown = re.match(r"(?:Could not override|Key) '([^']+)'", text)
    return text if unknown is None else _explain_unknown(unknown[1], config_name)


def _explain_unknown(name: str, config_name: str) -> str:
    """Names the settings nearest to a mistyped one, or the option that does not have it."""
    overrides = [o for o in sys.argv[1:] if "=" in o and _key(o) != name]
    options = [o for o in overrides if "." not in _key(o)]
    if name in _names(config_name, []):
        conflicting = [o for o in options if name not in _names(config_name, [o])]
        if conflicting:
            conflicts = " and ".join(conflicting)
            return f"{name} cannot be combined with {conflicts}. Leave out one of them."
    names = _names(config_name, options)
    last = re.split(r"[./]", name)[-1]
    nearest = (
        [n for n in names if n == last and "/" in name]  # model/quantizer is quantizer, the group
        or difflib.get_close_matches(name, [n for n in names if "." in n or "." not in name])
        or [n for n in names if n.endswith(f".{last}")]
    )
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
    if any(_key(o) == "resume" for o in overrides):
        hint += f" If the resumed run has it, write +{name}=VALUE."
    return f"there is no setting {name}.{hint} --cfg job shows all of them."


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")


def _names(config_name: str, overrides: list[str]) -> list[str]:
    """Returns the names of settings and groups; ignores the overrides if one of them is wrong."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose(config_name, overrides, return_hydra_config=True)
    except HydraException:
        return _names(config_name, [])
    names = [*config.hydra.runtime.choices, *(key for key, _ in settings_in(config))]
    return [name for name in names if not name.startswith("hydra")]


def settings_in(config: DictConfig | ListConfig) -> Iterator[tuple[str, Any]]:
    """Yields the full name and the value of each setting, without following references."""
    return leaves(OmegaConf.to_container(config), lists=False)


def targets_in(config: DictConfig | ListConfig) -> Iterator[tuple[str, str]]:
    """Yields every `_target_` in a configuration, at any depth, as (full name, target)."""
    for name, value in leaves(OmegaConf.to_container(config)):
        if name.rpartition(".")[2].startswith("_target_") and value is not None:
            yield name, str(value)
