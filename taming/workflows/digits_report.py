"""Whether sampled digits are good: recognisable, and not copies of the training images."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taming.data import ImageDataset
from taming.errors import UserError

__all__ = ["DigitsReport", "report_digits"]

SIDE = 8  # pixels of an original digit


@dataclass(frozen=True)
class DigitsReport:
    """What an SVM trained on the real training digits, and distances in pixels, say of the samples.

    Attributes:
        num_samples: how many were looked at.
        agreement: share of samples in which the SVM sees the digit that was asked for.
        svm_accuracy: the same SVM's on held-out real digits: what agreement can be hoped for.
        sample_distance: median Euclidean distance of a sample to its nearest training image, in
            grey levels of 0 to 16.
        held_out_distance: the same of held-out real digits.
    """

    num_samples: int
    agreement: float
    svm_accuracy: float
    sample_distance: float
    held_out_distance: float

    @property
    def distance_ratio(self) -> float:
        """Sampled over held-out distance: near 0 for copies, near 1 for new digits."""
        return self.sample_distance / self.held_out_distance


def report_digits(samples: Path, train: ImageDataset, held_out: ImageDataset) -> DigitsReport:
    """Judges `samples.npz` of a class-conditional digits model.

    Args:
        samples: the file that sampling wrote.
        train: the real digits the model was trained on.
        held_out: the real digits it was not.

    Raises:
        UserError: if the file holds no labels.
    """
    from sklearn.svm import SVC

    with np.load(samples) as arrays:
        if "arr_1" not in arrays:
            raise UserError(f"{samples} holds no labels: it is not of a class-conditional model.")
        sampled = _as_digits(arrays["arr_0"][..., 0].astype(np.float64))
        asked_for = arrays["arr_1"]
    train_digits, train_labels = _real(train)
    real_digits, real_labels = _real(held_out)
    svm = SVC(gamma=0.001).fit(train_digits, train_labels)
    return DigitsReport(
        num_samples=len(sampled),
        agreement=float((svm.predict(sampled) == asked_for).mean()),
        svm_accuracy=float((svm.predict(real_digits) == real_labels).mean()),
        sample_distance=_median_distance(sampled, train_digits),
        held_out_distance=_median_distance(real_digits, train_digits),
    )


def _real(dataset: ImageDataset) -> tuple[np.ndarray, np.ndarray]:
    images = np.stack([dataset[i]["images"][0].numpy() for i in range(len(dataset))])
    labels = np.array([dataset.label(i) for i in range(len(dataset))])
    return _as_digits((images + 1) * 127.5), labels


def _as_digits(images: np.ndarray) -> np.ndarray:
    """`(n H W)` in [0, 255] to the original format, `(n 64)` in [0, 16], by block means."""
    factor = images.shape[1] // SIDE
    blocks = images.reshape(len(images), SIDE, factor, SIDE, factor).mean((2, 4))
    return blocks.reshape(len(images), -1) * 16 / 255


def _median_distance(digits: np.ndarray, references: np.ndarray) -> float:
    squared = (digits**2).sum(1)[:, None] + (references**2).sum(1)[None] - 2 * digits @ references.T
    return float(np.median(np.sqrt(squared.clip(min=0).min(1))))
