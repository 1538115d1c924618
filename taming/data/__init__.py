"""Images, label maps and pairs: sources, transforms, token caches.

Lightning's data modules are in `taming.data.module`, so that the rest does without Lightning.
"""

from taming.data.arrays import CIFAR10, ArraySource, Digits, FashionMNIST
from taming.data.batches import EndlessBatches, LoaderOptions
from taming.data.dataset import ImageDataset, Part, Source
from taming.data.image_folder import ImageFolder
from taming.data.inspection import InspectionImages
from taming.data.readers import BrokenImageError, LabelMapReader, PictureReader, Reader
from taming.data.sources import DataSource, ImageFiles, PairFiles, held_out_split
from taming.data.tokens import (
    CacheDescription,
    TokenDataset,
    TokenGrid,
    TokenWriter,
)
from taming.data.transforms import ImageTransform

__all__ = [
    "CIFAR10",
    "ArraySource",
    "BrokenImageError",
    "CacheDescription",
    "DataSource",
    "Digits",
    "EndlessBatches",
    "FashionMNIST",
    "ImageDataset",
    "ImageFiles",
    "ImageFolder",
    "ImageTransform",
    "InspectionImages",
    "LabelMapReader",
    "LoaderOptions",
    "PairFiles",
    "Part",
    "PictureReader",
    "Reader",
    "Source",
    "TokenDataset",
    "TokenGrid",
    "TokenWriter",
    "held_out_split",
]
