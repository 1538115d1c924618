"""Lists of classes in messages."""

from collections.abc import Sequence

__all__ = ["class_difference", "count_difference", "listed"]

NAMES_SHOWN = 10


def listed(names: Sequence[object]) -> str:
    """The first of some classes."""
    shown = [str(name) for name in names[:NAMES_SHOWN]]
    return ", ".join([*shown, "…"] if len(names) > NAMES_SHOWN else shown)


def count_difference(whose: str, count: int, others: str, their_count: int) -> str | None:
    """How two numbers of classes differ, None if they do not."""
    if count == their_count:
        return None
    return f"{whose} classes are {count}, and {others} {their_count}"


def class_difference(
    whose: str, names: Sequence[str], others: str, their_names: Sequence[str]
) -> str | None:
    """Where two lists of classes differ first, None if they do not.

    `class_difference("the images'", ["cat", "dog"], "the model's", ["cat", "owl"])` is "the images'
    class 1 is 'dog', and the model's 'owl'".
    """
    if len(names) != len(their_names):
        return count_difference(whose, len(names), others, len(their_names))
    for label, (name, other) in enumerate(zip(names, their_names, strict=True)):
        if name != other:
            return f"{whose} class {label} is {name!r}, and {others} {other!r}"
    return None
