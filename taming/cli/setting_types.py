"""Checks settings against the type annotations of what they configure."""

import inspect
import json
import pkgutil
import re
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from taming.quantizers import KINDS
from taming.runtime.errors import UserError

__all__ = ["check_types"]


def check_types(config: DictConfig, annotations: Mapping[str, Any] | None = None) -> None:
    """Compares the settings of every `_target_` and quantizer with its signature.

    Args:
        config: the configuration to check.
        annotations: type annotations of settings that no target has, by name.

    Raises:
        UserError: with the settings that have the wrong type, and what they should be.
    """
    errors = list(dict.fromkeys(_errors(config, annotations or {})))
    if errors:
        raise UserError(". ".join(errors) + ".")


def _errors(config: DictConfig, annotations: Mapping[str, Any]) -> Iterator[str]:
    arguments = _annotations(config.get("_target_") or KINDS.get(config.get("kind")))
    key: Any  # a number, too
    for key in config:
        try:
            value = config[key]
        except (MissingMandatoryValue, InterpolationResolutionError):
            continue
        annotation = annotations.get(_name(config, key), arguments.get(str(key)))
        if annotation is not None and "_target_" not in str(value):  # which becomes an object
            yield from _errors_of_value(config, key, annotation)
        if isinstance(value, DictConfig):
            yield from _errors(value, annotations)


def _annotations(target: str | type | None) -> dict[str, Any]:
    """Returns the types of a target's arguments; none if it cannot be imported."""
    if target is None:
        return {}
    try:
        thing: Any = pkgutil.resolve_name(target) if isinstance(target, str) else target
        is_call = is_dataclass(thing) or not inspect.isclass(thing)
        call = thing if is_call else thing.__init__
        return typing.get_type_hints(call, include_extras=True)  # ranges, too
    except Exception:  # a module of the user's may raise anything when it is imported
        return {}


def _errors_of_value(config: DictConfig, key: Any, annotation: Any) -> Iterator[str]:
    value = config[key]
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # of libraries' annotations
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, TypeError):  # an annotation that pydantic cannot check
        return
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        adapter.validate_json(text, strict=True)  # as JSON, so that a list may be a tuple
    except ValidationError as error:
        expected = [detail["msg"].removeprefix("Input should be ") for detail in error.errors()]
        expected = [message for message in dict.fromkeys(expected) if "isinstance" not in message]
        if not expected:  # objects only, which the target itself checks
            return
        name = _name(config, key)
        is_text = any("string" in message or "path" in message for message in expected)
        quoted = f": write '{name}=\"{value}\"'" if isinstance(value, int | float) else ""
        hint = quoted if is_text else ""
        yield f"{name} should be {' or '.join(expected)}, not {text}{hint}"


def _name(config: DictConfig, key: Any) -> str:
    """Returns the name that the user sets: if the value is a reference, the name in it."""
    raw = OmegaConf.to_container(config)[key]  # type: ignore[index]
    reference = re.fullmatch(r"\$\{(\w[\w.]*)\}", str(raw))
    return reference[1] if reference else str(config._get_full_key(key))
