"""Small known data sets that fit into memory."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from torchvision import datasets

from taming.data.images import Channels, PictureReader
from taming.data.split import Part, hold_out
from taming.errors import UserError

__all__ = ["CIFAR10", "ArraySource", "Digits", "FashionMNIST"]


class ArraySource:
    """Images in an array as a source for `ImageDataset`.

    Args:
        description: name of the data set and its part, such as `cifar10/train`.
        images: uint8 `(n H W)` grey or `(n H W 3)` RGB.
        labels: `(n,)` class numbers.
        class_names: by class number.
        channels: 1 or 3: what images are converted to.
    """

    in_memory = True
    max_broken_fraction = 0.0

    def __init__(
        self,
        description: str,
        images: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        class_names: list[str],
        channels: Channels,
    ) -> None:
        self.description = description
        self.class_names = class_names
        self.reader = PictureReader(channels)
        self.broken: list[tuple[str, str]] = []
        self.sizes: list[tuple[int, int]] | None = [images.shape[1:3]] * len(images)
        self._images = np.ascontiguousarray(images)
        self._labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def load(self, index: int) -> Image.Image:
        """An image, mode `L` or `RGB`."""
        mode = "L" if self.reader.channels == 1 else "RGB"
        return Image.fromarray(self._images[index]).convert(mode)

    def label(self, index: int) -> int:
        """The class of an image."""
        return int(self._labels[index])

    def name(self, index: int) -> str:
        """`train/00012` for the twelfth image of a part called `train`."""
        return f"{self.description.partition('/')[2] or 'all'}/{index:05d}"

    def fingerprint(self) -> str:
        """Hex digest of name, pixels, labels and number of channels."""
        digest = hashlib.sha256(repr((self.description, self.reader.channels)).encode())
        digest.update(self._images.tobytes())
        digest.update(self._labels.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Digits:
    """scikit-learn's 1,797 handwritten digits, 8x8, light on dark; they come with the library.

    Their 17 levels, 0 to 16, are spread over 0 to 255. There is no official split: `val_fraction`
    of them are held out.
    """

    channels: Channels = 1
    val_fraction: float = 0.2
    image_size: ClassVar = (8, 8)

    @property
    def reader(self) -> PictureReader:
        """Says what the images are: grey or RGB."""
        return PictureReader(self.channels)

    def open(self) -> tuple[Part, Part]:
        """Training and validation images."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)
        names = [str(n) for n in range(10)]
        source = ArraySource("digits", images, digits.target, names, self.channels)
        return hold_out(source, self.val_fraction)


@dataclass(frozen=True, kw_only=True)
class FashionMNIST:
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28, light on dark.

    The test images are the validation data.

    Args:
        root: directory that holds `FashionMNIST/raw/`; downloaded there if it is missing.
        channels: 1 or 3.
    """

    root: str | Path
    channels: Channels = 1
    image_size: ClassVar = (28, 28)

    @property
    def reader(self) -> PictureReader:
        """Says what the images are: grey or RGB."""
        return PictureReader(self.channels)

    def open(self) -> tuple[Part, Part]:
        """Training and validation images.

        Raises:
            UserError: if the files are not there, or damaged, and cannot be downloaded.
        """
        return Part(self._source("train")), Part(self._source("test"))

    def _source(self, part: str) -> ArraySource:
        root = Path(self.root).expanduser()
        try:
            data = datasets.FashionMNIST(root, train=part == "train", download=True)
            images, labels = data.data.numpy(), data.targets.numpy()
        except Exception as error:
            raw = root / "FashionMNIST" / "raw"
            packed = [name for name, _ in datasets.FashionMNIST.resources]
            unpacked = [name.removesuffix(".gz") for name in packed]
            if all((raw / name).exists() for name in unpacked):  # then torchvision reads no others
                raise UserError(
                    f"Fashion-MNIST in {root} cannot be read: {_why(error)}. Delete "
                    f"{', '.join(unpacked)} from {raw.absolute()}: they are unpacked anew from the "
                    ".gz files there, or, without those, downloaded."
                ) from error
            url = datasets.FashionMNIST.mirrors[0]
            raise _missing("Fashion-MNIST", root, error, ", ".join(packed), url, raw) from error
        return ArraySource(f"fashion_mnist/{part}", images, labels, data.classes, self.channels)


@dataclass(frozen=True, kw_only=True)
class CIFAR10:
    """CIFAR-10: 50,000 training and 10,000 test photos of ten things, 32x32, RGB.

    As `FashionMNIST`; `root` holds `cifar-10-batches-py/` or `cifar-10-python.tar.gz`.
    """

    root: str | Path
    channels: Channels = 3
    image_size: ClassVar = (32, 32)

    @property
    def reader(self) -> PictureReader:
        """Says what the images are: grey or RGB."""
        return PictureReader(self.channels)

    def open(self) -> tuple[Part, Part]:
        """Training and validation images; raises a `UserError` if they are not to be had."""
        return Part(self._source("train")), Part(self._source("test"))

    def _source(self, part: str) -> ArraySource:
        root, theirs = Path(self.root).expanduser(), datasets.CIFAR10
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # its old pickles make NumPy complain
                data = theirs(root, train=part == "train", download=True)
        except Exception as error:
            raise _missing("CIFAR-10", root, error, theirs.filename, theirs.url, root) from error
        return ArraySource(f"cifar10/{part}", data.data, data.targets, data.classes, self.channels)


def _missing(
    name: str, root: Path, error: Exception, files: str, url: str, directory: Path
) -> UserError:
    return UserError(
        f"{name} is not complete in {root} and could not be downloaded: {_why(error)}. By hand: "
        f"get {files} from {url} and put it into {directory.absolute()}, where it is verified and "
        "unpacked. Or set data.root to a directory that has it."
    )


def _why(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
