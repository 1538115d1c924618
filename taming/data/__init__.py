"""Images, label maps and pairs: sources, lists of images, transforms, token caches.

Lightning's data modules are in `taming.data.module`, so that the rest does without Lightning.
"""

from taming.data.array_files import ArrayReader
from taming.data.batches import EndlessBatches, LoaderOptions
from taming.data.built_in import CIFAR10, Digits, FashionMNIST, ImageArray
from taming.data.dataset import ImageDataset, Part
from taming.data.huggingface import HuggingFaceImages
from taming.data.image_folder import ImageFolder
from taming.data.inspection import InspectionImages
from taming.data.readers import BrokenImageError, LabelMapReader, PictureReader, Reader
from taming.data.samples import open_samples
from taming.data.sources import ImageFiles, PairFiles, held_out_split
from taming.data.streams import ImageStream
from taming.data.token_writer import TokenWriter
from taming.data.tokens import CacheDescription, TokenDataset, TokenGrid
from taming.data.transforms import ImageTransform

__all__ = ["CIFAR10", "ArrayReader", "BrokenImageError", "CacheDescription", "Digits",
    "EndlessBatches", "FashionMNIST", "HuggingFaceImages", "ImageArray", "ImageDataset",
    "ImageFiles", "ImageFolder", "ImageStream", "ImageTransform", "InspectionImages",
    "LabelMapReader", "LoaderOptions", "PairFiles", "Part", "PictureReader", "Reader",
    "TokenDataset", "TokenGrid", "TokenWriter", "held_out_split", "open_samples"]  # fmt: skip
