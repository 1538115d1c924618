"""Small known data sets that fit into memory."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, FashionMNIST

from taming.data.images import MODES, Channels, Color
from taming.errors import UserError

__all__ = ["ArraySource", "load_cifar10", "load_digits", "load_fashion_mnist"]


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
    background: Color = (0, 0, 0)
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
        self.channels: Channels = channels
        self.broken: list[tuple[str, str]] = []
        self.sizes: list[tuple[int, int]] | None = [images.shape[1:3]] * len(images)
        self._images = np.ascontiguousarray(images)
        self._labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def load(self, index: int) -> Image.Image:
        """An image, mode `L` or `RGB`."""
        return Image.fromarray(self._images[index]).convert(MODES[self.channels])

    def label(self, index: int) -> int:
        """The class of an image."""
        return int(self._labels[index])

    def name(self, index: int) -> str:
        """`train/00012` for the twelfth image of a part called `train`."""
        return f"{self.description.partition('/')[2] or 'all'}/{index:05d}"

    def fingerprint(self) -> str:
        """Hex digest of name, pixels, labels and number of channels."""
        digest = hashlib.sha256(repr((self.description, self.channels)).encode())
        digest.update(self._images.tobytes())
        digest.update(self._labels.tobytes())
        return digest.hexdigest()


def load_digits(channels: Channels) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8, light on dark; comes with the library.

    Their 17 levels, 0 to 16, are spread over 0 to 255. There is no official split.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    return ArraySource("digits", images, digits.target, [str(n) for n in range(10)], channels)


def load_fashion_mnist(root: str | Path, train: bool, channels: Channels) -> ArraySource:
    """Fashion-MNIST: 60,000 training or 10,000 test images of clothes, 28x28, grey, light on dark.

    Args:
        root: directory that holds `FashionMNIST/raw/`; downloaded there if it is missing.
        train: the training or the test part.
        channels: 1 or 3.

    Raises:
        UserError: if the files are not there, or damaged, and cannot be downloaded.
    """
    root = Path(root).expanduser()
    try:
        data = FashionMNIST(root, train=train, download=True)
        images, labels = data.data.numpy(), data.targets.numpy()
    except Exception as error:
        raw = root / "FashionMNIST" / "raw"
        packed = [name for name, _ in FashionMNIST.resources]
        unpacked = [name.removesuffix(".gz") for name in packed]
        if all((raw / name).exists() for name in unpacked):  # then torchvision reads no others
            raise UserError(
                f"Fashion-MNIST in {root} (data.root) cannot be read: {_why(error)}. Delete "
                f"{', '.join(unpacked)} from {raw.absolute()}: they are unpacked anew from the .gz "
                "files there, or, without those, downloaded."
            ) from error
        raise _missing(
            "Fashion-MNIST", root, error, ", ".join(packed), FashionMNIST.mirrors[0], raw
        ) from error
    return ArraySource(f"fashion_mnist/{_part(train)}", images, labels, data.classes, channels)


def load_cifar10(root: str | Path, train: bool, channels: Channels) -> ArraySource:
    """CIFAR-10: 50,000 training or 10,000 test photos of ten things, 32x32, RGB.

    Arguments and errors as for `load_fashion_mnist`; `root` holds `cifar-10-batches-py/` or
    `cifar-10-python.tar.gz`.
    """
    root = Path(root).expanduser()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its old pickles make NumPy complain
            data = CIFAR10(root, train=train, download=True)
    except Exception as error:
        raise _missing("CIFAR-10", root, error, CIFAR10.filename, CIFAR10.url, root) from error
    return ArraySource(f"cifar10/{_part(train)}", data.data, data.targets, data.classes, channels)


def _part(train: bool) -> str:
    return "train" if train else "test"


def _missing(
    name: str, root: Path, error: Exception, files: str, url: str, directory: Path
) -> UserError:
    return UserError(
        f"{name} is not complete in {root} (data.root) and could not be downloaded: {_why(error)}. "
        f"By hand: get {files} from {url} and put it into {directory.absolute()}, where it is "
        "verified and unpacked. Or set data.root to a directory that has it."
    )


def _why(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
