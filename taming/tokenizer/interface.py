"""The interface of tokenizers: a stage-1 model as stage 2 sees it."""

from collections.abc import Sequence

from torch import Tensor

from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel

__all__ = ["Tokenizer", "height_and_width"]


def height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width); a single number means a square."""
    height, width = size if isinstance(size, Sequence) else (size, size)
    return height, width


class Tokenizer(PretrainedModel):
    """Encodes images as grids of indices and decodes them: a `VQGAN` or `CellClasses`.

    Args:
        resolution: (height, width) of the images in pixels, or one number for a square. Other
            multiples of `downsample_factor` work too.
        downsample_factor: pixels per code in height and width.

    Attributes:
        image_channels: 3 or 1 for pictures, the number of classes for label maps.
        label_maps: whether the images are label maps.
        codebook_size: number of codes.
        grid_size: (height, width) of the code grid at `resolution`, see `grid_size_for`.
    """

    image_channels: int
    label_maps: bool
    codebook_size: int

    def __init__(self, resolution: int | Sequence[int], downsample_factor: int) -> None:
        super().__init__()
        self.resolution = height_and_width(resolution)
        self.downsample_factor = downsample_factor
        self.grid_size = self.grid_size_for(self.resolution)

    def grid_size_for(self, resolution: Sequence[int]) -> tuple[int, int]:
        """Returns (height, width) of the code grid for images of this (height, width).

        Raises:
            UserError: if the resolution is not a multiple of the downsample factor.
        """
        height, width = resolution
        factor = self.downsample_factor
        if height % factor or width % factor:
            raise UserError(
                f"the resolution {height}×{width} is not a multiple of the downsample factor "
                f"{factor}. Use multiples of {factor}, or train with another factor: "
                "2^(number of channel_multipliers - 1), or condition_cell for label maps."
            )
        return height // factor, width // factor

    @property
    def takes_pictures(self) -> bool:
        """Whether the images are grey or RGB pictures and not label maps."""
        return self.image_channels in (1, 3) and not self.label_maps

    def require_pictures(self, *, or_label_maps: bool = False) -> None:
        """Raises a `UserError` unless the images are pictures, or label maps where allowed."""
        if not (self.takes_pictures or (or_label_maps and self.label_maps)):
            raise UserError(
                f"only grey or RGB pictures{' and label maps' * or_label_maps} work here. The "
                f"model's images have {self.image_channels} channels"
                f"{' and are label maps' * self.label_maps}. Use the model in Python."
            )

    def check_kind(self, label_maps: bool, channels: int) -> None:
        """Raises a `UserError` if the model was trained on another kind of images."""
        expected, actual = (
            f"{'label maps' if maps else 'pictures'} of {count} channels"
            for maps, count in ((self.label_maps, self.image_channels), (label_maps, channels))
        )
        if expected != actual:
            raise UserError(
                f"the tokenizer was trained on {expected}, and the images are {actual}. Give "
                "another model or other data."
            )

    def encode(self, images: Tensor) -> Tensor:
        """Maps images `(b c H W)` to indices `(b h w)` int64."""
        raise NotImplementedError

    def decode(self, indices: Tensor) -> Tensor:
        """Maps indices `(b h w)` to images `(b c H W)`."""
        raise NotImplementedError
