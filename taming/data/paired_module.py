"""The data module of pairs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

from taming.data.label_maps import LabelMapTransform
from taming.data.module import ImageDataModule, Part
from taming.data.pairs import PairFolder, PairTransform
from taming.data.transforms import ImageTransform

__all__ = ["PairedDataModule"]


class PairedDataModule(ImageDataModule):
    """Pairs of images and conditions for training and validation; see `ImageDataModule`.

    A batch is a dictionary: `images` float32 `(b c H W)` in [-1, 1], and `conditions` float32
    `(b c' H' W')`, pictures in [-1, 1] or one-hot label maps of 0 and 1.

    Args:
        open_parts: called once, by `setup`: finds and checks the data, of which the sources are
            `PairFolder`s.
        transform: of the pairs.
        image_transform: of the images alone; the same settings.
        palette: red, green and blue, 0 to 255, by class, to show label maps; None for a generated
            one, and for pictures.
        unlabelled, unlabelled_class: how label maps are read, see `LabelMapReader`.
        channels, batch_size, val_batch_size, num_workers, seed: see `ImageDataModule`.

    Attributes:
        condition_channels: 1, 3, or the number of classes.
        condition_resolution: (height, width) of the conditions in pixels.
        conditions_are_label_maps: whether they are one-hot label maps.
    """

    def __init__(
        self,
        open_parts: Callable[[], tuple[Part, Part]],
        transform: PairTransform,
        *,
        image_transform: ImageTransform,
        palette: Sequence[Sequence[int]] | None,
        unlabelled: int | None = 255,
        unlabelled_class: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(cache(open_parts), transform, **settings)  # for `images_alone`, too
        self.image_transform = image_transform
        self.palette = palette
        self.unlabelled = unlabelled
        self.unlabelled_class = unlabelled_class
        self.condition_channels = transform.condition_channels
        self.condition_resolution = transform.condition.size
        self.conditions_are_label_maps = isinstance(transform.condition, LabelMapTransform)
        self._settings = settings

    def images_alone(self) -> ImageDataModule:
        """The same images, in the same order and views, without reading their conditions.

        The files of both are found and checked once.
        """
        return ImageDataModule(self._open_images, self.image_transform, **self._settings)

    def _open_images(self) -> tuple[Part, Part]:
        train, val = self._open_parts()
        return _images_of(train), _images_of(val)


def _images_of(part: Part) -> Part:
    return Part(cast(PairFolder, part.source).images, part.indices)
