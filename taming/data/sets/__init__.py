"""The data sets a config can name (`configs/data`): one function each."""

from taming.data.sets.arrays import cifar10, digits, fashion_mnist
from taming.data.sets.files import image_folder, label_maps
from taming.data.sets.paired import paired

__all__ = ["cifar10", "digits", "fashion_mnist", "image_folder", "label_maps", "paired"]
