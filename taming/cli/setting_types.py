"""Whether settings have the types that what they configure is annotated with."""

import inspect
import pydoc
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from omegaconf import DictConfig, ListConfig, OmegaConf

from taming.errors import UserError

__all__ = ["check_types"]


def check_types(config: DictConfig, expected: Mapping[str, Any] | None = None) -> None:
    """Compares the settings of every `_target_` in a configuration with its signature.

    Whether a value is in range is left to the target itself: so is which of some words it is.

    Args:
        config: the configuration, or a part of one.
        expected: type annotations by name of settings that no target has, or has otherwise.

    Raises:
        UserError: naming the settings that are not of their type, and what they must be.
    """
    wrong = list(dict.fromkeys(_wrong_settings(config, expected or {})))
    if wrong:
        raise UserError(". ".join(wrong) + ".")


def _wrong_settings(config: DictConfig, expected: Mapping[str, Any]) -> Iterator[str]:
    annotations = _annotations(config.get("_target_"))
    for key in map(str, config):
        if OmegaConf.is_missing(config, key):
            continue
        annotation = expected.get(str(config._get_full_key(key)), annotations.get(key, Any))
        yield from _wrong(config, key, annotation)
        if isinstance(config[key], DictConfig):
            yield from _wrong_settings(config[key], expected)


def _annotations(target: str | None) -> dict[str, Any]:
    """Of a target's arguments; none where it cannot be found, which calling it will tell."""
    if target is None:
        return {}
    try:
        found: Any = pydoc.locate(target)
        if inspect.isclass(found):
            found = found.__init__
        return typing.get_type_hints(found)
    except Exception:  # whatever a module of the user's does when it is imported
        return {}


def _wrong(config: DictConfig, key: str, annotation: Any) -> Iterator[str]:
    """One sentence without its stop, or none."""
    value = config[key]
    if isinstance(value, DictConfig) and "_target_" in value:
        return  # becomes an object
    lists = isinstance(value, DictConfig | ListConfig)
    plain = OmegaConf.to_container(value, resolve=True) if lists else value
    if not _fits(plain, annotation):
        kinds = list(dict.fromkeys(kind for kind in map(_words, _alternatives(annotation)) if kind))
        kinds = [k for k in kinds if k != "null"] + ["null"] * ("null" in kinds)
        listed = ", ".join(kinds[:-1]) + " or " * (len(kinds) > 1) + kinds[-1]
        yield f"{_name(config, key)} must be {listed}, not {_written(plain)}"


def _name(config: DictConfig, key: str) -> str:
    """Where the user sets it: elsewhere, where the value is only a reference."""
    node = config._get_node(key)
    raw = node._value() if node is not None and OmegaConf.is_interpolation(config, key) else ""
    reference = str(raw)[2:-1]
    if str(raw) == f"${{{reference}}}" and ":" not in reference and not reference.startswith("."):
        return reference
    return str(config._get_full_key(key))


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union, without what comes along with them."""
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    members = list(typing.get_args(annotation))
    return [member for member in members if not (member is str and Path in members)]


def _fits(value: Any, annotation: Any) -> bool:
    return any(_is_a(value, member) for member in _alternatives(annotation))


def _is_a(value: Any, annotation: Any) -> bool:
    """Annotations of objects, which no value in a configuration has, fit everything."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (None, types.NoneType):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is str:  # a number is text, too: 16, which may be the name of something
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str)
    if origin is Literal:  # which of them, the target says better
        return any(_is_a(value, type(word)) for word in arguments)
    if origin in (list, tuple, Sequence, Iterable):
        inner = [argument for argument in arguments if argument is not ...]
        if not isinstance(value, list) or (
            origin is tuple and len(value) != len(arguments) == len(inner)
        ):
            return False
        return all(any(_fits(element, one) for one in inner) for element in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    return True


def _words(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return (
            ", ".join(map(str, arguments[:-1])) + " or " * (len(arguments) > 1) + str(arguments[-1])
        )
    if origin in (list, tuple, Sequence, Iterable):
        inner = {_words(argument) for argument in arguments if argument is not ...}
        kind = {"a whole number": "whole numbers", "a number": "numbers"}.get(inner.pop(), "")
        count = f"{len(arguments)} " if origin is tuple and ... not in arguments else ""
        return f"a list of {count}{kind}" if kind and not inner else "a list"
    if origin in (dict, Mapping):
        return "settings of its own"
    return {
        types.NoneType: "null",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
    }.get(annotation, "")


def _written(value: Any) -> str:
    """As a user writes it in a setting."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
