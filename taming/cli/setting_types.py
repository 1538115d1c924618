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


def check_types(config: DictConfig, expected: Mapping[str, Any] | None = None) -> None:
    """Compares the settings of every `_target_` and quantizer with its signature.

    `expected` has type annotations of settings that no target has, by name.

    Raises:
        UserError: naming the settings that are not of their type, and what they should be.
    """
    wrong = list(dict.fromkeys(_wrong_settings(config, expected or {})))
    if wrong:
        raise UserError(". ".join(wrong) + ".")


def _wrong_settings(config: DictConfig, expected: Mapping[str, Any]) -> Iterator[str]:
    annotations = _annotations(config.get("_target_") or KINDS.get(config.get("kind")))
    key: Any  # a number, too
    for key in config:
        try:
            value, annotation = config[key], annotations.get(str(key))
        except (MissingMandatoryValue, InterpolationResolutionError):
            continue
        annotation = expected.get(_name(config, key), annotation)
        if annotation is not None and "_target_" not in str(value):  # which becomes an object
            yield from _wrong(config, key, annotation)
        if isinstance(value, DictConfig):
            yield from _wrong_settings(value, expected)


def _annotations(target: str | type | None) -> dict[str, Any]:
    """Returns the types of a target's arguments; none if it cannot be imported."""
    if target is None:
        return {}
    try:
        found: Any = pkgutil.resolve_name(target) if isinstance(target, str) else target
        is_call = is_dataclass(found) or not inspect.isclass(found)
        call = found if is_call else found.__init__
        return typing.get_type_hints(call, include_extras=True)  # ranges, too
    except Exception:  # whatever a module of the user's does when it is imported
        return {}


def _wrong(config: DictConfig, key: Any, annotation: Any) -> Iterator[str]:
    value = config[key]
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # of libraries' annotations
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, TypeError):  # an annotation that pydantic cannot check
        return
    written = json.dumps(value, ensure_ascii=False, default=str)
    try:
        adapter.validate_json(written, strict=True)  # as JSON, so that a list may be a tuple
    except ValidationError as error:
        should = [detail["msg"].removeprefix("Input should be ") for detail in error.errors()]
        should = [msg for msg in dict.fromkeys(should) if "isinstance" not in msg]
        if not should:  # objects only, which the target itself checks
            return
        name = _name(config, key)
        quoted = f": write '{name}=\"{value}\"'" if isinstance(value, int | float) else ""
        text = any("string" in msg or "path" in msg for msg in should)
        yield f"{name} should be {' or '.join(should)}, not {written}{quoted if text else ''}"


def _name(config: DictConfig, key: Any) -> str:
    """Returns the name that the user sets: that of another setting if the value refers to it."""
    raw = OmegaConf.to_container(config)[key]  # type: ignore[index]
    reference = re.fullmatch(r"\$\{(\w[\w.]*)\}", str(raw))
    return reference[1] if reference else str(config._get_full_key(key))
