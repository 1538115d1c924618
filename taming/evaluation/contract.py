"""What a number depends on besides what it is a number of."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "EvaluationContract",
    "contract_differences",
    "digest_images",
    "file_digest",
    "join_digests",
]

SUBJECT = ("subject", "subject_digest", "code")  # may differ between the rows of one table


@dataclass(frozen=True, kw_only=True)
class EvaluationContract:
    """Everything that must be equal for two evaluations to be comparable, and what was evaluated.

    Published distances differ by the choice of reference images, their number, and how they are
    resized, more than by the models (Parmar et al. 2022, "On Aliased Resizing and Surprising
    Subtleties in GAN Evaluation"). Numbers of different contracts do not belong in one table.
    """

    reference: str  # data set of the validation images
    reference_digest: str  # of these images' pixels, whatever their order, names and place
    num_reference: int
    num_training_images: int  # whose features are compared; 0 without features
    num_samples: int | None  # of each row of samples; None: of a tokenizer
    resolution: tuple[int, int]  # (height, width) of all images
    resize: str
    crop: str
    interpolation: str
    quantisation: str
    features: str | None  # network and size of the images that it sees
    features_digest: str | None  # of its weights
    lpips: str | None  # network of LPIPS
    classifier_digest: str | None
    seed: int | None  # of the samples, the choice of images, the classifiers and the intervals
    subject: str  # checkpoint, or the images that were measured
    subject_digest: str
    code: Mapping[str, str]  # versions of this program and of what it builds on

    @property
    def digest(self) -> str:
        """Hex digest of what must be equal: the same for comparable evaluations only."""
        compared = json.dumps(_compared(asdict(self)), sort_keys=True)
        return hashlib.sha256(compared.encode()).hexdigest()[:16]

    def plain(self) -> dict[str, Any]:
        """Returns the contract as it is saved beside the numbers, its digest first."""
        return {"digest": self.digest, **asdict(self), "resolution": list(self.resolution)}


def contract_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Says in which terms two saved contracts differ: `num_reference 10000, not 500`."""
    first, second = _compared(one), _compared(other)
    return [
        f"{name} {second.get(name)}, not {first.get(name)}"
        for name in first | second
        if first.get(name) != second.get(name)
    ]


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
