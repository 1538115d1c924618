"""Well-known small data sets, in memory."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from taming.data.dataset import ImageList, Part
from taming.data.readers import Channels, PictureReader
from taming.data.sources import Fraction, hold_out
from taming.runtime.errors import UserError

__all__ = ["CIFAR10", "Digits", "FashionMNIST", "ImageArray"]


class ImageArray(ImageList):
    """Images in an array, as an `ImageList`.

    Args:
        description: name of the data set and its part, such as `cifar10/train`.
        images: uint8 `(n H W)` grey or `(n H W 3)` RGB.
        labels: `(n,)` class numbers.
        class_names: by class number.
        channels: channels of the loaded images, 1 or 3.
    """

    in_memory = True

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
        self.sizes = [images.shape[1:3]] * len(images)
        self._images = np.ascontiguousarray(images)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def load(self, index: int, least_side: int | None = None) -> Image.Image:
        """Returns an image, mode `L` or `RGB`."""
        mode = "L" if self.reader.channels == 1 else "RGB"
        return Image.fromarray(self._images[index]).convert(mode)

    def name(self, index: int) -> str:
        """Returns a name such as `train/00012`, for image 12 of the part `train`."""
        return f"{self.description.partition('/')[2] or 'all'}/{index:05d}"

    def fingerprint(self) -> str:
        """Returns a digest of name, pixels, labels and number of channels."""
        digest = hashlib.sha256(repr((self.description, self.reader.channels)).encode())
        digest.update(self._images.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class _InMemory:
    channels: Channels = 1

    @property
    def reader(self) -> PictureReader:
        """Reads the images, grey or RGB."""
        return PictureReader(self.channels)


@dataclass(frozen=True, kw_only=True)
class Digits(_InMemory):
    """scikit-learn's 1,797 handwritten digits, 8x8, light on dark, which come with the library.

    Their levels 0 to 16 are scaled to 0 to 255. There is no official split, so `val_fraction` and
    `test_fraction` are held out, see `ImageFiles`.
    """

    val_fraction: Fraction = 0.2
    test_fraction: Fraction | None = None
    image_size: ClassVar = (8, 8)

    def open(self) -> tuple[Part, ...]:
        """Loads the digits and holds out a share for validation, and one for testing."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)
        names = [str(n) for n in range(10)]
        array = ImageArray("digits", images, digits.target, names, self.channels)
        return hold_out(Part(array), self.val_fraction, self.test_fraction)


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(_InMemory):
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28, light on dark.

    The test images are the validation data.

    Args:
        root: directory with `FashionMNIST/raw/`, which is downloaded if it is missing.
        channels: channels of the images, 1 or 3.
    """

    root: str | Path
    image_size: ClassVar = (28, 28)
    name: ClassVar = "fashion_mnist"
    folder: ClassVar = "FashionMNIST/raw"  # below the root

    def open(self) -> tuple[Part, Part]:
        """Loads the training and test images, and downloads them if they are missing."""
        return Part(self._part("train")), Part(self._part("test"))

    def _part(self, part: str) -> ImageArray:
        from torchvision import datasets  # slow to import: only where it is used

        download: Any = getattr(datasets, type(self).__name__)
        root = Path(self.root).expanduser()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # CIFAR's old pickles make NumPy complain
                data = download(root, train=part == "train", download=True)
        except Exception as error:
            why = (" ".join(str(error).split()) or type(error).__name__)[:200]
            raise UserError(
                f"{type(self).__name__} in {root} cannot be read or downloaded: {why}. To add it "
                f"by hand, put {self._files(download)} into {(root / self.folder).absolute()}, "
                "without damaged or unpacked files."
            ) from error
        images, labels = np.asarray(data.data), np.asarray(data.targets)
        return ImageArray(f"{self.name}/{part}", images, labels, data.classes, self.channels)

    def _files(self, download: Any) -> str:
        names = ", ".join(name for name, _ in download.resources)
        return f"{names} from {download.mirrors[0]}"


@dataclass(frozen=True, kw_only=True)
class CIFAR10(FashionMNIST):
    """CIFAR-10: 50,000 training and 10,000 test photos of ten things, 32x32, RGB.

    `root` holds `cifar-10-batches-py/` or `cifar-10-python.tar.gz`. Otherwise like `FashionMNIST`.
    """

    channels: Channels = 3
    image_size: ClassVar = (32, 32)
    name: ClassVar = "cifar10"
    folder: ClassVar = ""

    def _files(self, download: Any) -> str:
        return f"{download.filename} from {download.url}"
