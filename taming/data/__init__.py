"""Images, label maps and pairs for training and evaluation: sources, transforms, data modules.

`taming.data.sets` holds one function for each data set a config can name.
"""

from taming.data.builtin import ArraySource
from taming.data.dataset import ImageDataset, Source
from taming.data.image_file import ImageFile, LabelMapFile, open_images, open_label_maps
from taming.data.image_folder import ImageFolder
from taming.data.images import BrokenImageError, load_image
from taming.data.inspection import InspectionImages
from taming.data.label_maps import LabelMapFolder, LabelMapReader, LabelMapTransform
from taming.data.loading import EndlessDataModule
from taming.data.lock import exclusive
from taming.data.module import ImageDataModule, Part, hold_out
from taming.data.paired_module import PairedDataModule
from taming.data.pairs import Pair, PairFolder, PairTransform
from taming.data.sampler import EndlessBatches
from taming.data.split import held_out_split
from taming.data.token_writer import TokenWriter
from taming.data.tokens import CacheDescription, TokenDataModule, TokenDataset, TokenGrid
from taming.data.transforms import ImageTransform

__all__ = [
    "ArraySource",
    "BrokenImageError",
    "CacheDescription",
    "EndlessBatches",
    "EndlessDataModule",
    "ImageDataModule",
    "ImageDataset",
    "ImageFile",
    "ImageFolder",
    "ImageTransform",
    "InspectionImages",
    "LabelMapFile",
    "LabelMapFolder",
    "LabelMapReader",
    "LabelMapTransform",
    "Pair",
    "PairFolder",
    "PairTransform",
    "PairedDataModule",
    "Part",
    "Source",
    "TokenDataModule",
    "TokenDataset",
    "TokenGrid",
    "TokenWriter",
    "exclusive",
    "held_out_split",
    "hold_out",
    "load_image",
    "open_images",
    "open_label_maps",
]
