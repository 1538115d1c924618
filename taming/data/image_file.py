"""Images to be looked at rather than trained on: a folder, an archive or a single file."""

from pathlib import Path

from PIL import Image

from taming.data.image_folder import ImageFolder
from taming.data.images import Channels, Color, header_size, load_image
from taming.data.label_maps import LabelMapFolder, LabelMapReader
from taming.errors import MissingPathError, UserError

__all__ = ["ImageFile", "LabelMapFile", "open_images", "open_label_maps"]


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


class LabelMapFile(ImageFile):
    """A single label map with the reading methods of a `LabelMapFolder`.

    Args:
        path: the file, of any suffix.
        reader: from the file to class numbers.
    """

    def __init__(self, path: Path, *, reader: LabelMapReader) -> None:
        super().__init__(path, channels=1, background=(0, 0, 0))
        self.reader = reader

    def load(self, index: int) -> Image.Image:
        """The class numbers, mode `L`; raises as `LabelMapReader` does."""
        return self.reader(self.path, self.description)


def open_images(
    path: str | Path,
    *,
    channels: Channels,
    background: Color,
    key: str,
    subfolder: str | None = None,
    subfolder_key: str = "subfolder",
) -> ImageFolder | ImageFile:
    """Finds the images at `path`, without classes, and reads none yet.

    Args:
        path: a folder, a `.zip` file or an image.
        channels: 1 or 3; the images are converted.
        background: RGB behind transparent parts.
        key: name of the setting `path` came from, for messages.
        subfolder: take only the images below this folder of it; None for all.
        subfolder_key: name of the setting `subfolder` came from.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if a folder or archive holds no images.
    """
    file = _single_file(path, key, subfolder, subfolder_key)
    if file is not None:
        return ImageFile(file, channels=channels, background=background)
    return ImageFolder(
        path,
        channels=channels,
        background=background,
        labels="none",
        max_broken_fraction=1.0,
        key=key,
        subfolder=subfolder,
        subfolder_key=subfolder_key,
    )


def open_label_maps(
    path: str | Path,
    *,
    reader: LabelMapReader,
    key: str,
    subfolder: str | None = None,
    subfolder_key: str = "subfolder",
) -> LabelMapFolder | LabelMapFile:
    """Finds the label maps at `path` and reads none yet; the arguments are as for `open_images`."""
    file = _single_file(path, key, subfolder, subfolder_key)
    if file is not None:
        return LabelMapFile(file, reader=reader)
    return LabelMapFolder(
        path,
        reader=reader,
        max_broken_fraction=1.0,
        key=key,
        subfolder=subfolder,
        subfolder_key=subfolder_key,
    )


def _single_file(
    path: str | Path, key: str, subfolder: str | None, subfolder_key: str
) -> Path | None:
    """The path of a single image; None for a folder or an archive."""
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a folder of images, a .zip "
            f"file or an image as {key}."
        )
    if path.is_dir() or path.suffix.lower() == ".zip":
        return None
    if subfolder is not None:
        raise UserError(f"{path} is a single file, and has no {subfolder_key}={subfolder} in it.")
    return path
