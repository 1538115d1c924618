"""Values within nested dictionaries, such as config.yaml and metrics.json."""

from collections.abc import Iterator
from typing import Any

__all__ = ["leaves"]


def leaves(value: Any, name: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yields every value within dictionaries and, if `lists`, within lists, with its full name.

    The full name joins the keys with dots: `trainer.max_steps`.
    """
    if isinstance(value, dict) or (lists and isinstance(value, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{name}.{key}" if name else str(key), lists)
    else:
        yield name, value
