"""Images of any depth and any number of channels, in NumPy arrays and TIFF files."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from PIL import Image

from taming.data.readers import MAX_PIXELS, BrokenImageError, File, Planes, decoding
from taming.runtime.errors import UserError

__all__ = ["ArrayReader"]


@dataclass(frozen=True)
class ArrayReader:
    """Reads `.npy` arrays and TIFF files of any depth: `(h w)`, `(h w c)` or `(c h w)`.

    Args:
        channels: number of channels.
        limits: the values that become -1 and 1, such as [0, 65535] for 16 bits.
    """

    channels: Annotated[int, Ge(1)]
    limits: tuple[float, float]
    label_maps: ClassVar[bool] = False
    suffixes: ClassVar[frozenset[str]] = frozenset({".npy", ".tif", ".tiff"})

    def __post_init__(self) -> None:
        # a list in the settings; the repr identifies token caches
        object.__setattr__(self, "limits", tuple(map(float, self.limits)))
        if self.limits[0] >= self.limits[1]:
            raise UserError(f"limits is {list(self.limits)}: give [smallest, largest].")

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.limits[0]:g} to {self.limits[1]:g}"

    @decoding()
    def read(self, file: File, name: str, least_side: int | None = None) -> Planes:
        """Reads a file at its original size.

        Raises:
            BrokenImageError: if it cannot be read, or has values that are not finite.
            UserError: if it has another number of channels, or values outside the limits.
        """
        content = Path(file).read_bytes() if isinstance(file, str | Path) else file.read()
        if content.startswith(np.lib.format.MAGIC_PREFIX):
            values = np.load(io.BytesIO(content), allow_pickle=False)
            _check_size(values.size)
        else:
            values = _read_tiff(io.BytesIO(content))
        if values.dtype.kind not in "biuf":
            raise BrokenImageError(f"an array of {values.dtype}, not of numbers")
        shape = values.shape
        if values.ndim == 2:
            values = values[..., None]
        if values.shape[-1] != self.channels:
            values = np.moveaxis(values, 0, -1)
        if values.ndim != 3 or values.shape[-1] != self.channels:
            raise UserError(
                f"{name} is an array {shape}, and data.channels is {self.channels}. Correct the "
                "setting, or remove the file."
            )
        if not np.isfinite(values).all():
            raise BrokenImageError("values that are not finite")
        low, high = self.limits
        if values.min() < low or values.max() > high:
            raise UserError(
                f"{name} has values from {values.min():g} to {values.max():g}, and data.limits is "
                f"[{low:g}, {high:g}]. Widen it."
            )
        # float32 holds every 16-bit number; one name lets Python free each copy early
        values = values.astype(np.float32 if values.itemsize <= 2 else np.float64)
        values -= low
        values /= high - low
        values = np.moveaxis(values, -1, 0).astype(np.float32, order="C")
        return Planes(tuple(map(Image.fromarray, values)))

    def tensor(self, image: Planes) -> torch.Tensor:
        """Turns an image into `(c H W)` in [-1, 1]; clamps the overshoot of resizing."""
        values = torch.from_numpy(np.stack([np.asarray(channel) for channel in image.channels]))
        return values.mul(2).sub(1).clamp(-1, 1)


def _read_tiff(file: IO[bytes]) -> np.ndarray:
    """Reads the first series of a TIFF file."""
    try:
        import tifffile
    except ImportError as error:
        raise UserError("TIFF files need tifffile: pip install 'taming[arrays]'.") from error
    with tifffile.TiffFile(file) as opened:
        series = opened.series[0]
        _check_size(series.size)  # which the size of the file does not bound
        return series.asarray()


def _check_size(num_values: int) -> None:
    if num_values > MAX_PIXELS:  # less than 1 GiB as float64
        raise BrokenImageError(f"{num_values:,} values, and at most {MAX_PIXELS:,} can be read")
