"""Checks the arguments in a config.json against the annotations of a constructor."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

__all__ = ["construct", "describe_error"]

T = TypeVar("T")


def construct(cls: type[T], arguments: Mapping[str, Any]) -> T:
    """Builds an object after pydantic has checked the arguments of its constructor.

    Raises:
        ValueError: if an argument is unknown, missing or does not match its annotation.
    """
    instance = cls.__new__(cls)
    init: Any = cls.__init__
    validate_call(config=ConfigDict(arbitrary_types_allowed=True))(init)(instance, **arguments)
    return instance


def describe_error(error: Exception) -> str:
    """Returns an error's message on one line; for pydantic, each argument and its fault."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
    return "; ".join(": ".join(filter(None, fault)) for fault in faults)
