"""What a number depends on besides what it is a number of."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taming.runtime.nested import leaves

__all__ = [
    "contract_differences",
    "contract_digest",
    "digest_images",
    "file_digest",
    "join_digests",
]

SUBJECT = ("subject", "subject_digest", "code")  # may differ between the rows of one table


def contract_digest(contract: Mapping[str, Any]) -> str:
    """Returns a hex digest that is the same for the contracts of comparable evaluations only.

    The reference counts by its pixels, wherever they lie.
    """
    compared = {name: x for name, x in _compared(contract).items() if name != "reference"}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:16]


def contract_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Says in which terms two saved contracts differ: `num_reference 10000, not 500`."""
    first, second = (dict(leaves(_compared(x), lists=False)) for x in (one, other))
    names = [name for name in first | second if first.get(name) != second.get(name)]
    if "reference_digest" not in names and "reference" in names:
        names.remove("reference")
    return [f"{name} {second.get(name)}, not {first.get(name)}" for name in names]


def digest_images(images: np.ndarray) -> np.ndarray:
    """Returns a digest of each image, `(b H W c)`, as a row of bytes: both uint8."""
    digests = [hashlib.sha256(repr(x.shape).encode() + x.tobytes()).digest() for x in images]
    return np.array(list(map(list, digests)), np.uint8)


def file_digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file's contents, in hex."""
    with Path(path).expanduser().open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def join_digests(digests: np.ndarray) -> str:
    """Returns the hex digest of a set of images, see `digest_images`, whatever their order."""
    return hashlib.sha256(b"".join(sorted(row.tobytes() for row in digests))).hexdigest()


def _compared(contract: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in contract.items() if name not in (*SUBJECT, "digest")}
