"""Which images are for training and which are held out for validation."""

import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from taming.data.dataset import Source
from taming.errors import UserError

__all__ = ["Part", "check_fraction", "held_out_split", "hold_out"]

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Images for training, or for validation.

    Attributes:
        source: where they are.
        indices: which of them; None for all.
        conditions: of pairs, in the order of `source`.
    """

    source: Source
    indices: list[int] | None = None
    conditions: Source | None = None


def hold_out(whole: Part, fraction: float) -> tuple[Part, Part]:
    """Splits images into training and validation (see `held_out_split`); warns if it cannot."""
    source = whole.source
    names = [source.name(i) for i in range(len(source))]
    labels = [source.label(i) for i in range(len(source))]
    train, val = held_out_split(names, labels, fraction)
    if train == val:
        log.warning(
            "note: no image can be held out (each is the last of its class), so validation is on "
            "the training images: its numbers say nothing about new ones. Give more images, or a "
            "data.val_path."
        )
    return whole._replace(indices=train), whole._replace(indices=val)


def held_out_split(
    names: Sequence[str], labels: Sequence[int | None], fraction: float
) -> tuple[list[int], list[int]]:
    """Splits items into training and validation, the same way whatever the seed and the machine.

    round(fraction · n) items are held out, but one at least, each class giving its share (largest
    remainders first) but never its last item. Within a class the items with the smallest hash of
    their name go, so adding images to the set moves few of the others from one side to the other.

    Args:
        names: unique names, n of them.
        labels: the class of each, or None.
        fraction: share to hold out, between 0 and 1.

    Returns:
        Indices for training and for validation, both ascending. Where each class has but one item
        nothing can be held out, and both are all items.

    Raises:
        UserError: if the fraction is out of range.
    """
    check_fraction(fraction)
    classes: dict[int | None, list[int]] = {}
    for index, label in enumerate(labels):
        classes.setdefault(label, []).append(index)
    held_out: list[int] = []
    total = max(1, round(fraction * len(names)))
    quotas = _quotas([len(members) for members in classes.values()], total)
    if sum(quotas) == 0:
        return list(range(len(names))), list(range(len(names)))
    for members, quota in zip(classes.values(), quotas, strict=True):
        held_out += sorted(members, key=lambda index: _hash(names[index]))[:quota]
    kept = set(range(len(names))).difference(held_out)
    return sorted(kept), sorted(held_out)


def check_fraction(fraction: float) -> None:
    """Raises a `UserError` unless it is above 0 and below 1."""
    if not 0 < fraction < 1:
        raise UserError(
            f"data.val_fraction is {fraction}: give the share to hold out for validation, above 0 "
            "and below 1 (or name a folder of validation images with data.val_path)."
        )


def _quotas(sizes: list[int], total: int) -> list[int]:
    """Shares `total` out in proportion to `sizes` by largest remainder, leaving one of each."""
    num_items = sum(sizes)
    quotas = [min(size * total // num_items, size - 1) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * total % num_items))
    can_give = [i for i in by_remainder if quotas[i] + 1 < sizes[i]]
    for i in can_give[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
