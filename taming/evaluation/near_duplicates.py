"""Near-duplicates: held-out images of which the training images contain another version.

Two images are compared by their thumbnails after whitening, which divides each principal component
by its spread over all images (Jégou and Chum 2012, "Negative Evidences and Co-occurrences in Image
Retrieval: the Benefit of PCA and Whitening"). What many images share then counts little, and the
details that only two versions of one image share count much. Neither a hash of 64 bits nor the
difference between pixels can tell them apart: 1,599 of the 10,000 test images of Fashion-MNIST have
the same dHash as a training image, because trousers look alike.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from taming.data import ImageDataset
from taming.evaluation.distances import feature_statistics
from taming.pictures import pixel_grid, to_uint8
from taming.runtime.errors import printable

__all__ = ["NearDuplicates", "Pair", "find_pairs", "thumbnails"]

TABLE, PICTURE = "near_duplicates.csv", "near_duplicates.png"
SIDE = 16  # of a thumbnail, in pixels
NUM_COMPONENTS = 256
NOISE = 10.0  # grey levels: what varies less hardly counts
VERSIONS = 16.0  # grey levels that versions of an image may differ by
# Two images are near-duplicates if the cosine of their angle is at least SURE. It may be LIKELY if
# the nearest training image stands out: if it is CLOSER times nearer than the 20th nearest. These
# numbers were chosen by looking at pairs, see docs/evaluation.md.
SURE, LIKELY, CLOSER, NUM_NEIGHBOURS = 0.95, 0.8, 4, 20
BLOCK = 256  # held-out images that are compared at once
NUM_PICTURES = 32


class Pair(NamedTuple):
    """A held-out image and the training image that is most similar to it.

    Attributes:
        held_out: position of the held-out image among those that were searched.
        training: position of the training image.
        similarity: cosine of the angle between the whitened thumbnails.
        mirrored: whether one image is the mirror image of the other.
    """

    held_out: int
    training: int
    similarity: float
    mirrored: bool


@dataclass(frozen=True)
class NearDuplicates:
    """The near-duplicates of training images among the held-out images.

    Args:
        pairs: at most one for each held-out image.
        held_out: the data set of the held-out images.
        held_out_numbers: numbers of the images in this data set that were searched.
        training: the data set of the training images.
        training_numbers: numbers of the images in this data set that were searched.
        left_out: whether the evaluation leaves them out.
    """

    pairs: Sequence[Pair]
    held_out: ImageDataset
    held_out_numbers: Sequence[int]
    training: ImageDataset
    training_numbers: Sequence[int]
    left_out: bool

    def numbers(self) -> dict[str, Any]:
        """Returns the numbers for metrics.json."""
        return {
            "num_near_duplicates": len(self.pairs),
            "near_duplicates_left_out": self.left_out,
            "num_training_images_searched": len(self.training_numbers),
        }

    def note(self, part: str) -> str | None:
        """Returns a sentence about the pairs; None if there are none and all images were searched.

        Args:
            part: `validation` or `test`.
        """
        count, total = len(self.pairs), len(self.held_out_numbers)
        num_training = len(self.training_numbers)
        searched = f"the {num_training:,} training images"
        if num_training < len(self.training):
            searched = f"{num_training:,} of {len(self.training):,} training images"
        elif not self.pairs:
            return None
        summary = (
            f"{count:,} of {total:,} {part} images ({count / total:.1%}) are near-duplicates of "
            f"{searched}"
        )
        if not self.pairs:
            return f"{summary}."
        names = [map(printable, self._names(pair)) for pair in self._by_similarity()[:3]]
        twins = [" of ".join(pair) for pair in names]
        files = f"such as {', '.join(twins)}. {TABLE} lists them, and {PICTURE} shows some."
        if self.left_out:
            return f"{summary} and were left out, {files}"
        return (
            f"{summary}, {files} The numbers on them may be too good. Set "
            "near_duplicates=leave_out to measure the other images only."
        )

    def write(self, directory: Path) -> list[Path]:
        """Writes the pairs as a `.csv` table and as a picture, and returns the files.

        The most similar pairs come first. The picture shows them, the least similar and some
        between, each with the held-out image to the left. Files of an earlier search are removed.
        """
        paths = [directory / TABLE, directory / PICTURE]
        for path in paths:
            path.unlink(missing_ok=True)
        if not self.pairs:
            return []
        with paths[0].open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            table = csv.writer(file)
            table.writerow(["held_out", "training", "similarity", "mirrored"])
            for pair in self._by_similarity():
                table.writerow([*self._names(pair), f"{pair.similarity:.4f}", int(pair.mirrored)])
        self._picture().save(paths[1])
        return paths

    def _by_similarity(self) -> list[Pair]:
        return sorted(self.pairs, key=_similarity, reverse=True)

    def _names(self, pair: Pair) -> tuple[str, str]:
        numbers = self.held_out_numbers[pair.held_out], self.training_numbers[pair.training]
        return self.held_out.name(numbers[0]), self.training.name(numbers[1])

    def _picture(self) -> Image.Image:
        pairs, count = self._by_similarity(), min(len(self.pairs), NUM_PICTURES)
        cells, captions = [], []
        for place in np.linspace(0, len(pairs) - 1, count).round().astype(int):
            pair = pairs[place]
            image = self.held_out[self.held_out_numbers[pair.held_out]]["images"]
            twin = self.training[self.training_numbers[pair.training]]["images"]
            image = image.flip(2) if pair.mirrored else image
            cells.append(to_uint8(torch.cat([image, twin], 2)[None])[0])
            captions.append(f"{pair.similarity:.3f}{' mirrored' if pair.mirrored else ''}")
        return pixel_grid(np.stack(cells), captions=captions, min_side=64)


def thumbnails(images: Tensor) -> Tensor:
    """Reduces images `(b c H W)` in [-1, 1] to uint8 `(b c 16 16)`."""
    small = F.adaptive_avg_pool2d(images.float().clamp(-1, 1), SIDE)
    return ((small + 1) * 127.5).round().to(torch.uint8)


def find_pairs(
    held_out: Tensor, training: Tensor, *, mirror: bool, device: torch.device
) -> list[Pair]:
    """Finds the held-out images that are near-duplicates of a training image.

    Args:
        held_out: thumbnails `(n c 16 16)`.
        training: thumbnails `(m c 16 16)`.
        mirror: whether mirror images count, as for a model that is trained on them.
        device: where the comparison runs.
    """
    mean, covariance = feature_statistics(torch.cat([held_out, training]).flatten(1).to(device))
    # among few images, the difference between two versions is itself much of the spread
    noise = NOISE**2 + VERSIONS**2 * len(mean) / (len(held_out) + len(training))
    variances, components = torch.linalg.eigh(covariance)  # ascending
    whitening = components / (variances.clamp(min=0) + noise).sqrt()
    whitening = whitening[:, -NUM_COMPONENTS:].float()

    def directions(images: Tensor) -> Tensor:
        centred = images.flatten(1).to(device).float() - mean.float()
        return F.normalize(centred @ whitening, dim=1)

    training_directions = torch.cat([directions(block) for block in training.split(BLOCK)])

    pairs: dict[int, Pair] = {}
    for mirrored in (False, True)[: 1 + mirror]:
        images = held_out.flip(3) if mirrored else held_out
        for start in range(0, len(images), BLOCK):
            similarities = directions(images[start : start + BLOCK]) @ training_directions.T
            nearest = similarities.topk(min(NUM_NEIGHBOURS, len(training)))
            first, last = nearest.values[:, 0], nearest.values[:, -1]
            stands_out = (first >= LIKELY) & (CLOSER * (1 - first) <= 1 - last)
            for row in ((first >= SURE) | stands_out).nonzero().flatten().tolist():
                pair = Pair(start + row, int(nearest.indices[row, 0]), first[row].item(), mirrored)
                pairs[pair.held_out] = max(pairs.get(pair.held_out, pair), pair, key=_similarity)
    return [pairs[number] for number in sorted(pairs)]


def _similarity(pair: Pair) -> float:
    return pair.similarity
