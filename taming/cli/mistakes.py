"""Mistakes in the command line itself, in plain words, and before PyTorch is imported."""

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from taming.errors import MissingPathError, UserError

__all__ = ["COMPOSED_FILE", "check_config", "check_nothing_missing", "check_overrides",
    "config_directory", "explain", "fixed_overrides", "leaves"]  # fmt: skip

# settings of all commands that must lead to something
PATHS = ("vqgan", "checkpoint", "finetune.checkpoint", "condition_tokenizer", "perceptual.weights",
    "data.path", "data.val_path", "input", "conditions.path", "complete.path", "classifier",
    "rejection.classifier", "frechet.weights", "runs")  # fmt: skip
COMPOSED_FILE = "config_composed.yaml"  # what a run is resumed with
DIRECTORIES = ("resume", "run_dir", "output_dir")  # and those that are made where they do not exist


def config_directory() -> Path:
    """`configs/` inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def check_overrides(overrides: Sequence[str]) -> None:
    """Checks that what must be a path, or the name of a file of settings, is one."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        name, value = override.key_or_group, override.value()
        given = str(override.input_line).partition("=")[2]
        if override.is_delete() or override.is_sweep_override():
            continue
        if name in (*PATHS, *DIRECTORIES):
            if value == "":
                raise UserError(f"{name}= is empty: give a path, or leave it out.")
            if isinstance(value, int | float):
                kind = "true or false" if isinstance(value, bool) else "a number"
                raise UserError(f"{name}={given} is {kind} to Hydra: write '{name}=\"{given}\"'.")
            if value is None and name in DIRECTORIES[1:]:
                raise UserError(f"{name}=null: it must be a path.")
        elif (config_directory() / name).is_dir() and not isinstance(value, str | list | dict):
            raise UserError(f"{name}={given}: give the name of a file of settings; see --help.")


def fixed_overrides(overrides: Sequence[str]) -> list[str]:
    """Keeps settings that are the same in all jobs of a sweep out of the names of their folders."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [repr(one.key_or_group) for one in parsed if not one.is_sweep_override()]
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"]


def check_config(config: DictConfig) -> None:
    """Checks that nothing is missing and that all paths exist."""
    if config.get("resume") is not None:  # all else is the run's own
        path = Path(config.resume).expanduser() / COMPOSED_FILE
        if not path.is_file():
            raise MissingPathError(
                f"nothing to resume: {path} does not exist. resume= takes the directory of a run."
            )
        return
    check_nothing_missing(config)
    for name in PATHS:
        try:
            value = OmegaConf.select(config, name)
        except OmegaConfBaseException:  # it refers to what only the command knows
            continue
        if not isinstance(value, str) or value.startswith("hf:"):
            continue
        try:
            exists = Path(value).expanduser().exists()
        except (OSError, RuntimeError) as error:  # too long a name, a user that is not there
            raise UserError(f"{name}={value} cannot be looked at: {error}.") from error
        if not exists:
            raise MissingPathError(f"{name}={value} does not exist (looked from {Path.cwd()}).")


def check_nothing_missing(config: DictConfig) -> None:
    """Raises a `UserError` that names the values that must be given and are not."""
    missing = sorted(key for key, value in _settings(config) if value == "???")
    if missing:
        example = " ".join(f"{name}=VALUE" for name in missing)
        raise UserError(
            f"these values must be given: {', '.join(missing)}. Add to the command: {example}"
        )


def explain(error: HydraException, config_name: str) -> str:
    """What is wrong with the settings given, and what may have been meant."""
    if isinstance(error, OverrideParseException):
        return (
            f"the setting {error.override} cannot be read. A value with =, commas, brackets, "
            "spaces, signs such as & # ~ or letters such as é goes into two pairs of quotes, one "
            "for the shell and one for Hydra: "
            "'data.path=\"my images, size=64\"'."
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
        plugin = (
            " Is its plugin installed? See the file." if missing[1].startswith("hydra/") else ""
        )
        return f"there is no '{missing[1]}'; there are {', '.join(options) or 'none'}.{plugin}"
    unknown = re.match(r"(?:Could not override|Key) '([^']+)'", text)
    return text if unknown is None else _explain_unknown(unknown[1], config_name)


def _explain_unknown(name: str, config_name: str) -> str:
    """Names those nearest to a mistyped one, or the chosen option that has no such setting."""
    others = [o for o in sys.argv[1:] if "=" in o and _key(o) != name]
    choices = [o for o in others if "." not in _key(o)]
    known = _names(config_name, []) or []
    if name in known:
        against = [c for c in choices if name not in (_names(config_name, [c]) or known)]
        if against:
            return f"{name} does not go with {' and '.join(against)}: leave out one of them."
    there = _names(config_name, others) or _names(config_name, choices) or known
    close = difflib.get_close_matches(name, there, n=3)
    if not close:  # a group further down: data.crop, for data.transform.crop
        ends = {known.rpartition(".")[2]: known for known in there if known[0] == name[0]}
        last = difflib.get_close_matches(name.rpartition(".")[2], ends, n=1, cutoff=0.8)
        close = [ends[end] for end in last]
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    if any(_key(o) == "resume" for o in others):
        meant += f" If it is one of the resumed run, write +{name}=VALUE."
    return f"there is no setting {name}.{meant} --help shows all of them."


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")


def _names(config_name: str, overrides: list[str]) -> list[str] | None:
    """The names of all settings under these overrides; None if one of those is wrong."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            return [key for key, _ in _settings(compose(config_name, overrides))]
        except HydraException:
            return None


def _settings(config: DictConfig) -> Iterator[tuple[str, Any]]:
    """All settings with their names, and as they are written: references are not followed."""
    return leaves(OmegaConf.to_container(config), lists=False)


def leaves(value: Any, key: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Every value within dictionaries, and lists if they are not to stay whole, with its name."""
    if isinstance(value, dict) or (lists and isinstance(value, list)):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{key}.{name}" if key else str(name), lists)
    else:
        yield key, value
