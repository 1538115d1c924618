"""The command that comes next, written so that a user can paste it."""

import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from taming.cli.mistakes import config_directory, settings_in
from taming.cli.saved_config import config_of_run
from taming.cli.settings import Trait, has_trait
from taming.runtime.nested import leaves

if TYPE_CHECKING:
    from taming.generation.inputs import InputImages

__all__ = [
    "SuggestComparison",
    "condition_settings",
    "data_of_run",
    "data_settings",
    "override",
    "print_next",
    "program",
    "setting",
    "settings_of_conditions",
]  # fmt: skip

PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*", re.ASCII)
WORDS = ("null", "true", "false", "nan", "inf")  # Hydra does not read these as text


def program(name: str) -> str:
    """Returns how the user calls a command: as a script, or by its installed name."""
    if Path(sys.argv[0]).suffix == ".py":
        return f"python scripts/{name}.py"
    return f"taming-{name.replace('_', '-')}"


def print_next(text: str) -> None:
    """Prints the command that comes next, unless this is one job of a sweep."""
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        print(text)


class SuggestComparison(Callback):
    """Prints the command that comes next after a sweep. Hydra calls it."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Prints the command that compares the runs."""
        print(
            f"next: compare the runs of the sweep:\n"
            f"  {program('compare')} {setting('runs', config.hydra.sweep.dir)}"
        )


def setting(name: str, value: Any) -> str:
    """Returns `name=value`, quoted for Hydra and for the shell where either needs it."""
    return shlex.quote(override(name, value))


def override(name: str, value: Any) -> str:
    """Returns `name=value`, quoted for Hydra where it needs it."""
    return f"{name}={_hydra(value)}"


def _hydra(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | ListConfig):
        return f"[{','.join(map(_hydra, value))}]"
    if not isinstance(value, str) or (PLAIN.fullmatch(value) and value.lower() not in WORDS):
        return str(value)
    # backslashes count only in front of a quote
    escaped = re.sub(r'(\\*)(")', r"\1\1\\\2", value)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def settings_of_conditions(conditions: "InputImages") -> list[str]:
    """Returns the settings of `sample` for condition images that are not defaults."""
    return [
        setting(f"conditions.{field.name}", getattr(conditions, field.name))
        for field in fields(conditions)
        if getattr(conditions, field.name) != field.default
    ]


def data_settings(data: DictConfig) -> list[str]:
    """Returns the `data=` option of a run, and its data settings that are not defaults."""
    values = dict(leaves(OmegaConf.to_container(data, resolve=True), lists=False))
    for path in (config_directory() / "data").glob("*.yaml"):
        defaults = dict(settings_in(OmegaConf.load(path)))
        if all(values.get(n) == v for n, v in defaults.items() if n.endswith("_target_")):
            option = [] if path.stem == "image_folder" else [setting("data", path.stem)]
            return option + [
                setting(f"data.{name}", values[name])
                for name, default in defaults.items()
                if name in values
                and not has_trait(f"data.{name}", Trait.OF_ONE_COMMAND)
                and not str(default).startswith("${")
                and values[name] != default
            ]
    return []  # the user's own data module


def data_of_run(checkpoint: str, resolution: tuple[int, int]) -> list[str]:
    """Returns the data settings of the run of a checkpoint, or a placeholder without a run.

    They contain the size of the images if it differs from the model's `resolution`.
    """
    from taming.tokenizer import height_and_width

    data = config_of_run(checkpoint).get("data")
    settings = [] if data is None else data_settings(data)
    if settings and height_and_width(data.resolution) != resolution:
        settings.append(setting("data.resolution", data.resolution))
    return settings or ["data.path=MY_IMAGES"]


def condition_settings(data: DictConfig) -> list[str]:
    """Returns the settings of `sample` for the condition images of paired data."""
    from taming.generation.inputs import InputImages

    if OmegaConf.select(data, "source.condition_folder") is None:  # the user's own data module
        return settings_of_conditions(InputImages("MY_CONDITIONS"))
    path = data.path if data.val_path is None else data.val_path
    return settings_of_conditions(InputImages(path, data.source.condition_folder))
