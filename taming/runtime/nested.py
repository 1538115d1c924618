"""What lies within dictionaries, such as those of config.yaml and metrics.json."""

from collections.abc import Iterator
from typing import Any

__all__ = ["leaves"]


def leaves(value: Any, name: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yields every value within dictionaries, and within lists if `lists`, with its full name.

    A full name joins the keys by dots: `trainer.max_steps`.
    """
    if isinstance(value, dict) or (lists and isinstance(value, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{name}.{key}" if name else str(key), lists)
    else:
        yield name, value
