"""Images as they are, of any sizes, in batches of one size each."""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import DataLoader, Dataset

from taming.data.image_file import ImageFile
from taming.data.image_folder import ImageFolder
from taming.data.images import BrokenImageError
from taming.data.transforms import ImageTransform
from taming.errors import UserError

__all__ = ["InspectionImages"]

NUM_NAMED = 10

log = logging.getLogger(__name__)


class InspectionImages(Dataset[tuple[torch.Tensor | None, str]]):
    """The images of a source for a model that takes any size that divides by its factor.

    Making one reads the headers of the images. Broken files are left out, counted and named.

    Args:
        source: where the images are.
        factor: the model's downsample factor.
        resolution: None: every image keeps its size, and what is left over of a multiple of
            `factor` is cut off on both sides alike; else pixels, one number or (height, width),
            that all are resized and cropped in the middle to.
        min_side: smallest side of a result that can be used.
        max_images: only the first so many; None: all.

    Attributes:
        numbers: of the images that are taken, in the source.
        broken: (name, reason) of the files left out so far.
        num_cropped: images that lose something because they do not divide.
        num_magnified: images smaller than `resolution`.

    Raises:
        UserError: if an image is too small, or no image is whole.
    """

    def __init__(
        self,
        source: ImageFolder | ImageFile,
        *,
        factor: int,
        resolution: int | Sequence[int] | None,
        min_side: int,
        max_images: int | None,
    ) -> None:
        self.source = source
        self.factor = factor
        self.min_side = min_side
        self.broken: list[tuple[str, str]] = []
        self.num_cropped = 0
        self.num_magnified = 0
        self._transform: ImageTransform | None = None
        if resolution is not None:
            self._transform = ImageTransform(
                resolution=resolution, resize="shorter_side", crop="center"
            )
            self._check_side(self._transform.size, "resolution")
        sizes: dict[int, tuple[int, int]] = {}
        for number in range(len(source)):
            if len(sizes) == max_images:
                break
            try:
                sizes[number] = self._result_size(source.size(number), source.name(number))
            except BrokenImageError as error:
                self.note_broken(number, str(error))
        self.numbers = list(sizes)
        self.check_any_left(len(sizes))
        # images of one size next to each other, so that they can share a batch
        self._order = sorted(sizes, key=lambda number: (sizes[number], number))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: int) -> tuple[torch.Tensor | None, str]:
        """`(c H W)` in [-1, 1], and what is wrong with the file, in which case it is None."""
        number = self._order[position]
        try:
            image = self.source.load(number)
        except BrokenImageError as error:
            return None, str(error)
        transform = self._transform
        if transform is None:
            size = self._divisible((image.height, image.width))
            transform = ImageTransform(resolution=size, resize="none", crop="center")
        return transform(image, None, self.source.name(number)), ""

    def batches(
        self, batch_size: int, num_workers: int
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Numbers in the source, and images `(b c H W)` of one size, b up to `batch_size`."""
        loader = DataLoader(
            self, batch_size=None, num_workers=num_workers, generator=torch.Generator()
        )
        numbers: list[int] = []
        images: list[torch.Tensor] = []
        for number, (image, why) in zip(self._order, loader, strict=True):
            if image is None:
                self.note_broken(number, why)
                continue
            if images and (len(images) == batch_size or image.shape != images[0].shape):
                yield numbers, torch.stack(images)
                numbers, images = [], []
            numbers.append(number)
            images.append(image)
        if images:
            yield numbers, torch.stack(images)

    def note_broken(self, number: int, why: str) -> None:
        """Leaves an image out."""
        self.broken.append((self.source.name(number), why))

    def check_any_left(self, num_images: int) -> None:
        """Raises a `UserError` naming the broken files if `num_images`, what is left, is 0."""
        if num_images:
            return
        raise UserError(
            f"{self.source.description}: no image can be read ({self.describe_broken()}). Give "
            "images in a format that Pillow reads."
        )

    def describe_broken(self) -> str:
        """`name: reason` of the broken files, at most ten."""
        listed = "; ".join(f"{name}: {why}" for name, why in self.broken[:NUM_NAMED])
        return f"{listed}; …" if len(self.broken) > NUM_NAMED else listed

    def _divisible(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = size
        return height - height % self.factor, width - width % self.factor

    def _result_size(self, size: tuple[int, int], name: str) -> tuple[int, int]:
        if self._transform is not None:
            self.num_magnified += self._transform.magnifies(size)
            return self._transform.size
        result = self._divisible(size)
        if min(result) < max(self.factor, self.min_side):
            self._check_side(result, f"{name}, {size[0]}×{size[1]} pixels,")
        self.num_cropped += result != size
        return result

    def _check_side(self, size: tuple[int, int], what: str) -> None:
        height, width = size
        if height % self.factor or width % self.factor:
            raise UserError(
                f"{what} is {height}×{width}, which does not divide by the model's downsample "
                f"factor {self.factor}: use multiples of {self.factor}."
            )
        if min(size) < self.factor:
            raise UserError(
                f"{what} is smaller than the model's downsample factor {self.factor}: leave it "
                "out, or give resolution=PIXELS to resize all images."
            )
        if min(size) < self.min_side:
            raise UserError(
                f"{what} leaves {height}×{width} to the model, and the measures need "
                f"{self.min_side} pixels a side: leave it out, or give a larger resolution=PIXELS "
                "that all images are resized to."
            )
