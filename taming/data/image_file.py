"""Images to be looked at rather than trained on: a folder, an archive or a single file."""

from pathlib import Path

from PIL import Image

from taming.data.image_folder import ImageFolder
from taming.data.images import Channels, Color, header_size, load_image
from taming.errors import MissingPathError

__all__ = ["ImageFile", "open_images"]


class ImageFile:
    """A single image with the reading methods of an `ImageFolder`.

    Args:
        path: the file, of any suffix.
        channels: 1 or 3; the image is converted.
        background: RGB behind transparent parts.
    """

    def __init__(self, path: Path, *, channels: Channels, background: Color) -> None:
        self.path = path
        self.channels: Channels = channels
        self.background = background
        self.description = str(path)

    def __len__(self) -> int:
        return 1

    def load(self, index: int) -> Image.Image:
        """Decodes the image, mode `L` or `RGB`; raises `BrokenImageError`."""
        return load_image(self.path, self.channels, self.background)

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) by the file's header; raises `BrokenImageError`."""
        return header_size(self.path)

    def name(self, index: int) -> str:
        """The file's name."""
        return self.path.name


def open_images(
    path: str | Path, *, channels: Channels, background: Color, key: str
) -> ImageFolder | ImageFile:
    """Finds the images at `path`, without classes, and reads none yet.

    Args:
        path: a folder, a `.zip` file or an image.
        channels: 1 or 3; the images are converted.
        background: RGB behind transparent parts.
        key: name of the setting `path` came from, for messages.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if a folder or archive holds no images.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a folder of images, a .zip "
            f"file or an image as {key}."
        )
    if path.is_file() and path.suffix.lower() != ".zip":
        return ImageFile(path, channels=channels, background=background)
    return ImageFolder(
        path,
        channels=channels,
        background=background,
        labels="none",
        max_broken_fraction=1.0,
        key=key,
    )
