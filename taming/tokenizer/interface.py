"""The interface of tokenizers, as stage 2 sees a stage-1 model."""

from collections.abc import Sequence

from torch import Tensor

from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel

__all__ = ["Tokenizer", "height_and_width"]


def height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width), where a single number means a square."""
    height, width = size if isinstance(size, Sequence) else (size, size)
    return height, width


class Tokenizer(PretrainedModel):
    """Encodes images as grids of codes, and decodes these: a `VQGAN`, or `CellClasses`.

    Args:
        resolution: (height, width) of the images in pixels, one number for a square. Other sizes
            that divide by `downsample_factor` work too.
        downsample_factor: height and width in pixels of what one code stands for.

    Attributes:
        image_channels: of pictures 3 or 1, of label maps the number of classes.
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
        """Returns (height, width) of the code grid of images of this (height, width).

        Raises:
            UserError: if the resolution does not divide by the downsample factor.
        """
        height, width = resolution
        factor = self.downsample_factor
        if height % factor or width % factor:
            raise UserError(
                f"the resolution {height}×{width} does not divide by the downsample factor "
                f"{factor}: use multiples of {factor}; a new model can have another factor "
                "(channel_multipliers, one more than the halvings; condition_cell of label maps)."
            )
        return height // factor, width // factor

    @property
    def takes_pictures(self) -> bool:
        """Whether the images are grey or RGB, and not label maps or other numbers."""
        return self.image_channels in (1, 3) and not self.label_maps

    def require_pictures(self, *, or_label_maps: bool = False) -> None:
        """Raises a `UserError` unless the images are pictures, or label maps where these do."""
        if not (self.takes_pictures or (or_label_maps and self.label_maps)):
            raise UserError(
                f"the model's images have {self.image_channels} channels"
                f"{' and are label maps' if self.label_maps else ''}, and only pictures, grey or "
                f"RGB,{' and label maps' if or_label_maps else ''} are taken here: use the model "
                "in Python."
            )

    def check_kind(self, label_maps: bool, channels: int) -> None:
        """Raises a `UserError` if images of this kind are not those of the training."""
        trained, these = (
            f"{'label maps' if maps else 'pictures'} of {count} channels"
            for maps, count in ((self.label_maps, self.image_channels), (label_maps, channels))
        )
        if trained != these:
            raise UserError(
                f"the tokenizer was trained on {trained}, and the images are {these}: give another "
                "model or other data."
            )

    def encode(self, images: Tensor) -> Tensor:
        """Encodes `(b c H W)` images as `(b h w)` int64 indices."""
        raise NotImplementedError

    def decode(self, indices: Tensor) -> Tensor:
        """Decodes `(b h w)` indices to `(b c H W)` images."""
        raise NotImplementedError
