"""Mistakes in the command line itself, in plain words, and before PyTorch is imported."""

import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf

from taming.runtime.errors import MissingPathError, UserError
from taming.runtime.nested import leaves

__all__ = ["COMPOSED_FILE", "DIRECTORIES", "check_config", "check_overrides", "config_directory",
    "explain", "settings_in"]  # fmt: skip

# settings of all commands that must lead to something
PATHS = ("vqgan", "checkpoint", "finetune.checkpoint", "condition_tokenizer", "perceptual.weights",
    "data.path", "data.val_path", "input", "conditions.path", "complete.path", "classifier",
    "rejection.classifier", "frechet.weights", "runs")  # fmt: skip
DIRECTORIES = ("resume", "run_dir", "output_dir")  # that a command writes into
COMPOSED_FILE = "config_composed.yaml"  # what a run is resumed with


def config_directory() -> Path:
    """Returns `configs/` inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def check_overrides(overrides: Sequence[Override]) -> None:
    """Checks that paths, and names of files of settings, are text to Hydra."""
    for override in overrides:
        name, value = override.key_or_group, override.value()
        if override.is_delete() or override.is_sweep_override():
            continue
        if name in PATHS + DIRECTORIES:
            if value == "" or (value is None and name in ("run_dir", "output_dir")):
                raise UserError(f"{override.input_line}: give a path, or leave it out.")
            if isinstance(value, int | float):
                text = str(override.input_line).partition("=")[2]
                raise UserError(f"{name}={text} is no text to Hydra: write '{name}=\"{text}\"'.")
        elif (config_directory() / name).is_dir() and not isinstance(value, str | list | dict):
            raise UserError(f"{override.input_line}: give the name of a file of settings.")


def check_config(config: DictConfig) -> None:
    """Checks that nothing is missing and that all paths exist."""
    if config.get("resume") not in (None, "auto"):  # all else is the run's own
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
            f"these values must be given: {', '.join(missing)}. Add to the command: {example}"
        )
    if config.get("resume") == "auto" and "${now:" in dict(settings_in(config))["run_dir"]:
        raise UserError("resume=auto needs a directory that is the same each time: give run_dir=…")
    for name in PATHS:
        value = OmegaConf.select(config, name, throw_on_resolution_failure=False)
        if not isinstance(value, str) or re.match(r"hf:|\w+://", value):
            continue
        if set(value) & set("*?[{"):  # a pattern, which its reader knows
            continue
        if not os.path.exists(os.path.expanduser(value)):  # noqa: PTH110, PTH111 (never raises)
            raise MissingPathError(f"{name}={value} does not exist (looked from {Path.cwd()}).")


def explain(error: HydraException, config_name: str) -> str:
    """Says what is wrong with the settings, and what may have been meant."""
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return (
            f"{error.override} has no value: settings are NAME=VALUE, and a value with spaces goes "
            "into two pairs of quotes: 'data.path=\"my images\"'."
        )
    if isinstance(error, OverrideParseException):
        return (
            f"the setting {error.override} cannot be read. Is each quote closed? A value with "
            "spaces, signs such as = , [ & # ~ or letters such as é goes into two pairs of quotes, "
            "one for the shell and one for Hydra: 'data.path=\"my images, size=64\"'."
        )
    text = str(error)
    if several := re.match(r"Ambiguous value for argument '([^']+)'", text):
        name, _, value = several[1].partition("=")
        return (
            f"{several[1]} has several values: add --multirun for a run with each; or write "
            f"'{name}=[{value}]' for a list, '{name}=\"{value}\"' for a text with commas."
        )
    if missing := re.search(r"Could not find '([^']+)'", text):
        options = re.findall(r"^\t([^\t\n=]+)$", text, re.MULTILINE)
        plugin = missing[1].startswith("hydra/")
        hint = " Is its plugin installed? See the file." if plugin else ""
        return f"there is no '{missing[1]}'; there are {', '.join(options) or 'none'}.{hint}"
    unknown = re.match(r"(?:Could not override|Key) '([^']+)'", text)
    return text if unknown is None else _explain_unknown(unknown[1], config_name)


def _explain_unknown(name: str, config_name: str) -> str:
    """Names the settings nearest to a mistyped one, or the chosen option that has no such one."""
    others = [o for o in sys.argv[1:] if "=" in o and _key(o) != name]
    choices = [o for o in others if "." not in _key(o)]
    if name in _names(config_name, []):
        against = [c for c in choices if name not in _names(config_name, [c])]
        if against:
            return f"{name} does not go with {' and '.join(against)}: leave out one of them."
    known = _names(config_name, choices)
    last = re.split(r"[./]", name)[-1]
    near = (
        [k for k in known if k == last and "/" in name]  # model/quantizer is quantizer, the group
        or difflib.get_close_matches(name, [k for k in known if "." in k or "." not in name])
        or [k for k in known if k.endswith(f".{last}")]
    )
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    if any(_key(o) == "resume" for o in others):
        meant += f" If it is one of the resumed run, write +{name}=VALUE."
    return f"there is no setting {name}.{meant} --help shows all of them."


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")


def _names(config_name: str, overrides: list[str]) -> list[str]:
    """Returns names of settings and groups under these overrides; without them if one is wrong."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose(config_name, overrides, return_hydra_config=True)
    except HydraException:
        return _names(config_name, [])
    names = [*config.hydra.runtime.choices, *(key for key, _ in settings_in(config))]
    return [name for name in names if not name.startswith("hydra")]


def settings_in(config: DictConfig | ListConfig) -> Iterator[tuple[str, Any]]:
    """Yields all settings with their names, as they are written: references are not followed."""
    return leaves(OmegaConf.to_container(config), lists=False)
