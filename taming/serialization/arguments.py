"""Arguments from a file, checked against the annotations of what they are for."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

__all__ = ["construct", "describe_error"]

T = TypeVar("T")


def construct(cls: type[T], arguments: Mapping[str, Any]) -> T:
    """Calls a class; its constructor's annotations give the types and ranges of the arguments.

    Raises:
        ValueError: pydantic's, if an argument is unknown, missing, or not as annotated.
    """
    made = cls.__new__(cls)
    init: Any = cls.__init__
    validate_call(config=ConfigDict(arbitrary_types_allowed=True))(init)(made, **arguments)
    return made


def describe_error(error: Exception) -> str:
    """Returns the message of an error in one line; of pydantic's, each argument and its fault."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    faults = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
    return "; ".join(": ".join(filter(None, fault)) for fault in faults)
