"""Settings written so that a command can be pasted: what comes next, after a command has ended."""

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from taming.cli.app import RESOLVED_FILE
from taming.cli.encoding import size_of
from taming.cli.mistakes import config_directory
from taming.workflows import GivenImages

__all__ = [
    "condition_settings",
    "data_of_run",
    "data_settings",
    "given_settings",
    "override",
    "setting",
]

OF_THE_TRAINING = ("resolution", "channels", "batch_size", "val_batch_size", "num_workers", "seed")

PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*", re.ASCII)
WORDS = ("null", "true", "false", "nan", "inf")  # to Hydra no text


def setting(name: str, value: Any) -> str:
    """`name=value`, quoted for Hydra and for the shell where either needs it."""
    return shlex.quote(override(name, value))


def override(name: str, value: Any) -> str:
    """`name=value` as an argument of its own, quoted for Hydra where it needs it."""
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


def data_settings(data: DictConfig) -> list[str]:
    """What `data=` option a configuration's data are, and their values that are not its defaults.

    What a training of its own chooses, or takes from its tokenizer, is not among them.

    Args:
        data: the composed data settings of a run.
    """
    plain: Any = OmegaConf.to_container(data, resolve=True)
    for path in (config_directory() / "data").glob("*.yaml"):
        defaults: Any = OmegaConf.to_container(OmegaConf.load(path))
        if defaults["_target_"] == plain["_target_"]:
            option = [] if path.stem == "image_folder" else [setting("data", path.stem)]
            return option + [
                setting(f"data.{name}", value)
                for name, value in plain.items()
                if name not in OF_THE_TRAINING and value != defaults.get(name)
            ]
    return []  # a set of the user's own


def data_of_run(checkpoint: str, resolution: tuple[int, int]) -> list[str]:
    """The data a run was trained on, as settings; of other models a name to put one's own at.

    The images' size is named where it is not the `resolution` of the model.
    """
    path = Path(checkpoint).expanduser() / RESOLVED_FILE
    settings = []
    if path.is_file():
        data = OmegaConf.load(path).data
        settings = data_settings(data)
        if settings and size_of(data.resolution) != resolution:
            settings.append(setting("data.resolution", data.resolution))
    return settings or ["data.path=MY_IMAGES"]


def condition_settings(data: DictConfig) -> list[str]:
    """How `sample` is given some of the condition images of paired data."""
    if data.get("condition_folder") is None:  # a set of the user's own
        return given_settings(GivenImages("MY_CONDITIONS"))
    path = data.path if data.val_path is None else data.val_path
    return given_settings(GivenImages(path, data.condition_folder))


def given_settings(given: GivenImages) -> list[str]:
    """Of condition images given to `sample`, the settings that are not defaults."""
    return [
        setting(f"conditions.{field.name}", getattr(given, field.name))
        for field in fields(given)
        if getattr(given, field.name) != field.default
    ]
