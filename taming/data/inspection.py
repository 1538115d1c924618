"""Images at their own sizes, batched by size."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch.utils.data import Dataset

from taming.data.batches import make_loader
from taming.data.image_folder import ImageFolder
from taming.data.transforms import ImageTransform
from taming.runtime.errors import UserError

__all__ = ["InspectionImages"]


class InspectionImages(Dataset[torch.Tensor]):
    """The images of a folder, for a model that takes any multiple of its downsample factor.

    The constructor decodes every image once, so that all broken files are known before the model
    runs. It drops them, and the log counts and names them.

    Args:
        folder: the images.
        downsample_factor: the downsample factor of the model.
        resolution: pixels, one number or (height, width), to which all images are resized and
            center-cropped. None center-crops each image to a multiple of `downsample_factor`.
        min_side: the smallest usable side of a result in pixels.
        max_images: use the first images only; None for all.

    Attributes:
        broken: (name, reason) of each dropped file.
        sizes: (height, width) of each image for the model.
        num_cropped: images whose sides are no multiples of `downsample_factor`.
        num_magnified: images smaller than `resolution`.

    Raises:
        UserError: if an image is too small, or no image is whole.
    """

    def __init__(
        self,
        folder: ImageFolder,
        *,
        downsample_factor: int,
        resolution: int | tuple[int, int] | None,
        min_side: int,
        max_images: int | None,
    ) -> None:
        self.folder = folder
        self.downsample_factor, self.resolution = downsample_factor, resolution
        folder.drop_broken("full", max_images)
        self.broken = folder.broken
        self.sizes: list[tuple[int, int]] = []
        self.num_cropped = self.num_magnified = 0
        least = max(downsample_factor, min_side)
        for number, before in enumerate(folder.sizes or []):
            transform = self._transform(before)
            after = transform.size
            if min(after) < least:
                raise UserError(
                    f"{folder.name(number)}, {before[0]}×{before[1]} pixels, leaves "
                    f"{after[0]}×{after[1]} to the model, which needs {least} pixels a side. Leave "
                    "it out, or give a larger resolution=PIXELS for all images."
                )
            self.sizes.append(after)
            self.num_cropped += resolution is None and before != after
            self.num_magnified += transform.magnifies(before)

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns an image, `(c H W)` in [-1, 1]."""
        image = self.folder.load(number)
        transform = self._transform((image.height, image.width))
        return self.folder.reader.tensor(transform(image))

    def batches(self, batch_size: int) -> list[list[int]]:
        """Groups the numbers of the images into batches of one size, at most `batch_size` each."""
        order = sorted(range(len(self)), key=self.sizes.__getitem__)
        batches = []
        for _, group in groupby(order, key=self.sizes.__getitem__):
            numbers = list(group)
            batches += [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
        return batches

    def load(
        self, batches: Sequence[list[int]], num_workers: int
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields the numbers of the images in each batch, and the images as `(b c H W)`."""
        loader = make_loader(self, num_workers, batch_sampler=batches)
        yield from zip(batches, loader, strict=True)

    def _transform(self, size: tuple[int, int]) -> ImageTransform:
        """Returns the transform of an image of this (height, width)."""
        if self.resolution is not None:
            return ImageTransform(resolution=self.resolution, resize="shorter_side", crop="center")
        factor = self.downsample_factor
        divisible = size[0] - size[0] % factor, size[1] - size[1] % factor
        return ImageTransform(resolution=divisible, resize="none", crop="center")
