"""Settings written so that a command can be pasted: what comes next, after a command has ended."""

import re
import shlex
from dataclasses import fields
from typing import Any

from omegaconf import ListConfig

from taming.workflows import GivenImages

__all__ = ["given_settings", "override", "setting"]

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


def given_settings(given: GivenImages) -> list[str]:
    """Of condition images given to `sample`, the settings that are not defaults."""
    return [
        setting(f"conditions.{field.name}", getattr(given, field.name))
        for field in fields(given)
        if getattr(given, field.name) != field.default
    ]
