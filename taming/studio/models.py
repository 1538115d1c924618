"""The models of a studio: a generator with its tokenizer, or only a tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from taming.data.dataset import naming
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions, load_model
from taming.pictures import palette_of
from taming.runtime.errors import UserError
from taming.studio.uploads import to_images
from taming.tokenizer import VQGAN

__all__ = ["StudioModel"]


@dataclass(frozen=True)
class StudioModel:
    """A loaded model."""

    name: str  # the path it was loaded from
    tokenizer: VQGAN
    generator: ImageGenerator | None = None

    @classmethod
    def load(
        cls, path: str | Path, device: torch.device | str = "cpu", dtype: SamplingDtype = "auto"
    ) -> Self:
        """Loads the model at a path, see `load_model`; `dtype` is as in sampling."""
        tokenizer, generator = load_model(path)
        with naming(str(path)):
            tokenizer.require_pictures(or_label_maps=True)
        if generator is not None and generator.transformer.config.order not in ("raster", "any"):
            raise UserError(
                f"{path} draws codes in {generator.transformer.config.order} order. The studio "
                "shows models of raster order and of any order. Use sample.py for this model."
            )
        (generator or tokenizer).to(device)
        if generator is not None:
            generator.prepare_sampling(SamplingOptions(), dtype, num_images=1)
        return cls(str(path), tokenizer, generator)

    @property
    def grid_size(self) -> tuple[int, int]:
        """(height, width) in codes of the images that it draws or encodes."""
        return self.tokenizer.grid_size if self.generator is None else self.generator.grid_size

    @property
    def palette(self) -> np.ndarray | None:
        """Colours of the classes, for a model of label maps."""
        return palette_of(self.tokenizer)

    def images(self, picture: Image.Image | None) -> Tensor:
        """Converts a picture to the tokenizer's input `(1 c H W)`, see `to_images`."""
        images = to_images(picture, self.tokenizer, self.grid_size, self.palette)
        return images.to(self.tokenizer.device)

    @property
    def description(self) -> str:
        """The model in a line of Markdown."""
        rows, columns = self.grid_size
        factor = self.tokenizer.downsample_factor
        text = (
            f"`{self.name}`: images of {rows * factor} × {columns * factor} pixels as {rows} × "
            f"{columns} codes out of {self.tokenizer.codebook_size}"
        )
        if self.generator is None:
            return f"**tokenizer** {text}"
        layers = len(self.generator.transformer.blocks)
        return f"**generator** {text}; a transformer of {layers} layer{'s' * (layers > 1)}"
