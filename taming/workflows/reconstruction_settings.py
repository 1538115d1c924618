"""What `reconstruct_images` can be told."""

from collections.abc import Sequence
from dataclasses import dataclass

from taming.errors import UserError
from taming.evaluation import LPIPSMetric, ReconstructionMetrics

__all__ = ["ReconstructionSettings"]


@dataclass(frozen=True)
class ReconstructionSettings:
    """How to reconstruct.

    Attributes:
        resolution: None: every image at its own size, cut in the middle to multiples of the
            downsample factor; else pixels, one number (square) or (height, width), that every image
            is resized and cropped in the middle to, as for training.
        tile: pixels a side of the tiles that larger images are cut into; None: no tiles.
        overlap: pixels that neighbouring tiles share, at most half a tile; None: a quarter.
        batch_size: images at once, of equal size.
        max_images: only the first so many; None: all.
        num_workers: processes that load images.
        background: RGB, 0 to 255, behind transparent parts.
        lpips: network of LPIPS, `"vgg"` or `"alex"`; None: not measured.
        write_images: also write each image as a PNG into `images/`.
        side_by_side: of these, the image beside its reconstruction; else that alone.

    Raises:
        UserError: for values out of range.
    """

    resolution: int | Sequence[int] | None = None
    tile: int | None = None
    overlap: int | None = None
    batch_size: int = 16
    max_images: int | None = None
    num_workers: int = 0
    background: Sequence[int] = (255, 255, 255)
    lpips: str | None = None
    write_images: bool = False
    side_by_side: bool = True

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("max_images", 1), ("tile", 1), ("num_workers", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise UserError(f"{name}={value}: give a whole number, {least} or more.")
        if self.overlap is not None:
            if self.tile is None:
                raise UserError(f"overlap={self.overlap} is of tiles: give tile=PIXELS too.")
            if not 0 <= self.overlap <= self.tile // 2:
                raise UserError(
                    f"overlap={self.overlap}: give 0 to {self.tile // 2}, half of tile={self.tile}."
                )
        if self.lpips is not None and self.lpips not in LPIPSMetric.MIN_SIDES:
            raise UserError(f"lpips={self.lpips}: give vgg, alex or null.")

    @property
    def tile_overlap(self) -> int:
        """`overlap`, or its default."""
        return (self.tile or 0) // 4 if self.overlap is None else self.overlap

    @property
    def min_side(self) -> int:
        """Pixels a side that the measures need."""
        lpips = 0 if self.lpips is None else LPIPSMetric.MIN_SIDES[self.lpips]
        return max(ReconstructionMetrics.MIN_SIDE, lpips)
