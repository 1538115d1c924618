"""An image of any number of channels."""

from dataclasses import dataclass

from PIL import Image

__all__ = ["AnyImage", "Planes"]


@dataclass(frozen=True)
class Planes:
    """An image of any number of channels, each a Pillow image of mode `F`, 0 to 1."""

    channels: tuple[Image.Image, ...]

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return self.channels[0].width

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return self.channels[0].height


AnyImage = Image.Image | Planes
