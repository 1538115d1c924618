"""Settings of the next command, written so that it can be pasted."""

import re
import shlex
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from taming.cli.app import config_of_run
from taming.cli.mistakes import config_directory, settings_in
from taming.generation.inputs import InputImages
from taming.runtime.nested import leaves
from taming.tokenizer import height_and_width

__all__ = ["condition_settings", "data_of_run", "data_settings", "given_settings", "override",
    "setting"]  # fmt: skip

PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*", re.ASCII)
OF_THE_TRAINING = ("resolution", "channels", "batch_size", "loader")
WORDS = ("null", "true", "false", "nan", "inf")  # to Hydra no text


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


def given_settings(given: InputImages) -> list[str]:
    """Returns the settings of `sample` for condition images that are not defaults."""
    return [
        setting(f"conditions.{field.name}", getattr(given, field.name))
        for field in fields(given)
        if getattr(given, field.name) != field.default
    ]


def data_settings(data: DictConfig) -> list[str]:
    """Returns the `data=` option of a run, and the settings of its data that are not defaults.

    What the next training chooses for itself, or takes from its tokenizer, is left out.
    """
    found = dict(leaves(OmegaConf.to_container(data, resolve=True), lists=False))
    for path in (config_directory() / "data").glob("*.yaml"):
        defaults = dict(settings_in(OmegaConf.load(path)))
        if all(found.get(n) == v for n, v in defaults.items() if n.endswith("_target_")):
            option = [] if path.stem == "image_folder" else [setting("data", path.stem)]
            return option + [
                setting(f"data.{name}", found[name])
                for name, default in defaults.items()
                if name in found
                and name.split(".")[0] not in OF_THE_TRAINING
                and not str(default).startswith("${")
                and found[name] != default
            ]
    return []  # a set of the user's own


def data_of_run(checkpoint: str, resolution: tuple[int, int]) -> list[str]:
    """Returns the data settings of a run; a placeholder for models that are not in a run.

    The size of the images is among them if it is not the `resolution` of the model.
    """
    data = config_of_run(checkpoint).get("data")
    settings = [] if data is None else data_settings(data)
    if settings and height_and_width(data.resolution) != resolution:
        settings.append(setting("data.resolution", data.resolution))
    return settings or ["data.path=MY_IMAGES"]


def condition_settings(data: DictConfig) -> list[str]:
    """Returns the settings of `sample` for the condition images of paired data."""
    if OmegaConf.select(data, "source.condition_folder") is None:  # a set of the user's own
        return given_settings(InputImages("MY_CONDITIONS"))
    path = data.path if data.val_path is None else data.val_path
    return given_settings(InputImages(path, data.source.condition_folder))
