"""Pictures at each validation, in the run directory and in the loggers."""

import logging
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import numpy as np
import torch
from annotated_types import Ge
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image
from torch.distributed.fsdp import FullyShardedDataParallel

from taming.generation import ImageGenerator
from taming.pictures import palette_of, pixel_grid, side_by_side, to_uint8
from taming.training.transformer import TransformerTraining
from taming.training.vqgan import VQGANTraining

__all__ = ["ReconstructionGrids", "SampleGrids"]

log = logging.getLogger("taming")


class _Grids(L.Callback):
    """Writes a picture of the first batch of each validation, with `num_images` images."""

    name: str

    def __init__(self, dirpath: str | Path, num_images: Annotated[int, Ge(0)] = 16) -> None:
        self.dirpath = Path(dirpath)
        self.num_images = num_images

    def picture(self, pl_module: Any, outputs: Any, batch: dict[str, torch.Tensor]) -> Image.Image:
        raise NotImplementedError

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if batch_idx > 0 or self.num_images == 0 or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        model: Any = trainer.model
        # with FSDP, every rank needs all the weights; otherwise this does nothing
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            if trainer.is_global_zero:
                self._write(trainer, self.picture(pl_module, outputs, batch))

    def _write(self, trainer: L.Trainer, picture: Image.Image) -> None:
        step = trainer.global_step
        path = self.dirpath / f"{self.name}_{step:07d}.png"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
        except OSError as error:
            log.warning("%s cannot be written (%s). Training continues.", path, error)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_image(f"val/{self.name}", [picture], step=None)
            elif isinstance(logger, TensorBoardLogger):
                pixels = np.asarray(picture.convert("RGB"))
                logger.experiment.add_image(f"val/{self.name}", pixels, step, dataformats="HWC")


class ReconstructionGrids(_Grids):
    """Images next to their reconstructions, four pairs per row."""

    name = "reconstructions"

    def picture(
        self, pl_module: VQGANTraining, outputs: torch.Tensor, batch: dict[str, torch.Tensor]
    ) -> Image.Image:
        colors = getattr(pl_module.trainer.datamodule, "palette", None)  # type: ignore[attr-defined]
        palette = palette_of(pl_module.vqgan, colors)
        columns = [to_uint8(x[: self.num_images], palette) for x in (batch["images"], outputs)]
        pairs = side_by_side(columns, None)  # (b 2 H W 3)
        return pixel_grid(np.concatenate(pairs), num_columns=2 * min(4, len(pairs)))


class SampleGrids(_Grids):
    """Samples by class, or next to the first conditions and images of the validation data."""

    name = "samples"

    def picture(
        self, pl_module: TransformerTraining, outputs: Any, batch: dict[str, torch.Tensor]
    ) -> Image.Image:
        """Returns samples with the same random numbers at each validation."""
        generator = pl_module.generator
        if generator.conditioning.takes_images:
            return self._with_conditions(generator, batch)
        palette = palette_of(generator.tokenizer)
        if generator.conditioning.num_classes is None:
            return pixel_grid(to_uint8(generator.sample(self.num_images, seed=0), palette))
        labels = torch.arange(self.num_images) % generator.conditioning.num_classes
        names = generator.class_names
        captions = [names[label] if names else str(label) for label in labels.tolist()]
        samples = generator.sample(self.num_images, labels, seed=0)
        return pixel_grid(to_uint8(samples, palette), captions=captions)

    def _with_conditions(
        self, generator: ImageGenerator, batch: dict[str, torch.Tensor]
    ) -> Image.Image:
        """Returns each condition with its sample and the real image."""
        encoder = generator.require_condition_tokenizer()
        codes = batch["condition_indices"][: self.num_images]
        images = generator.decode(generator.to_tokens(batch["indices"][: self.num_images]))
        samples = generator.sample(len(codes), codes, seed=0)
        image_palette = palette_of(generator.tokenizer)
        columns = [to_uint8(samples, image_palette), to_uint8(images, image_palette)]
        palette = palette_of(encoder, getattr(generator.conditioning, "palette", None))
        groups = side_by_side(columns, encoder.decode(codes), palette)  # (b 3 H W 3)
        return pixel_grid(np.concatenate(groups), num_columns=3 if len(groups) < 4 else 6)
