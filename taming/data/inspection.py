"""Images at their own sizes, batched by size."""

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset

from taming.data.batches import make_loader
from taming.data.image_folder import ImageFolder
from taming.data.readers import BrokenImageError
from taming.data.transforms import ImageTransform
from taming.errors import UserError, join_names

__all__ = ["InspectionImages"]


class InspectionImages(Dataset[tuple[torch.Tensor | None, str]]):
    """The images of a folder for a model that takes any size that divides by its factor.

    Making one reads the headers of the images. Broken files are left out, counted and named.

    Args:
        folder: the images.
        downsample_factor: the model's.
        resolution: pixels, one number or (height, width), to which all images are resized and
            cropped in the middle; None: every image keeps its size, but for what is over a
            multiple of `downsample_factor`, which is cut off on both sides alike.
        min_side: smallest side of a result that can be used.
        max_images: take only this many, the first ones; None: all.

    Attributes:
        broken: (name, reason) of the files left out so far.
        num_cropped: images that lose something because they do not divide.
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
        self.downsample_factor = downsample_factor
        self._fixed: ImageTransform | None = None
        if resolution is not None:
            self._fixed = ImageTransform(
                resolution=resolution, resize="shorter_side", crop="center"
            )
        folder.drop_broken("header", max_images)
        self.broken = folder.broken
        before = folder.sizes or []
        after = [self._size(size) for size in before]
        least = max(downsample_factor, min_side)
        for number, size in enumerate(after):
            if min(size) < least:
                raise UserError(
                    f"{folder.name(number)}, {before[number][0]}×{before[number][1]} pixels, "
                    f"leaves {size[0]}×{size[1]} to the model, and {least} pixels a side are "
                    "needed: leave it out, or give a larger resolution=PIXELS for all images."
                )
        self.num_cropped = self.num_magnified = 0
        if self._fixed is None:
            self.num_cropped = sum(map(tuple.__ne__, before, after))
        else:
            self.num_magnified = sum(map(self._fixed.magnifies, before))
        # images of one size next to each other, so that they can share a batch
        self._order = sorted(range(len(folder)), key=lambda number: after[number])

    def __len__(self) -> int:
        return len(self.folder)

    def keep_share(self, share: range) -> None:
        """Takes only these of the images, in the order of their batches, from now on."""
        self._order = [self._order[place] for place in share]

    def __getitem__(self, number: int) -> tuple[torch.Tensor | None, str]:
        """Returns `(c H W)` in [-1, 1] and ""; for a broken file None and what is wrong with it."""
        try:
            image = self.folder.load(number)
        except BrokenImageError as error:
            return None, str(error)
        transform = self._fixed or ImageTransform(
            resolution=self._size((image.height, image.width)), resize="none", crop="center"
        )
        return self.folder.reader.tensor(transform(image)), ""

    def batches(
        self, batch_size: int, num_workers: int
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields images' numbers, and the images `(b c H W)` of one size, b up to `batch_size`.

        Raises:
            UserError: if no image can be read.
        """
        loader = make_loader(self, num_workers, batch_size=None, sampler=self._order)
        numbers: list[int] = []
        images: list[torch.Tensor] = []
        for number, (image, why) in zip(self._order, loader, strict=True):
            if image is None:
                self.broken.append((self.folder.name(number), why))
                continue
            if images and (len(images) == batch_size or image.shape != images[0].shape):
                yield numbers, torch.stack(images)
                numbers, images = [], []
            numbers.append(number)
            images.append(image)
        if not images:
            raise UserError(
                f"{self.folder.description}: no image can be read ({self.describe_broken()})."
            )
        yield numbers, torch.stack(images)

    def describe_broken(self) -> str:
        """Lists the broken files and their reasons, at most ten."""
        return join_names([f"{name}: {why}" for name, why in self.broken], separator="; ")

    def _size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns the result's (height, width) for an image of this size."""
        if self._fixed is not None:
            return self._fixed.size
        factor = self.downsample_factor
        return size[0] - size[0] % factor, size[1] - size[1] % factor
