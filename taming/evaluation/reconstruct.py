"""Reconstructs images with a tokenizer, measures the quality and writes the results."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from PIL import Image, ImageOps
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from tqdm import tqdm

from taming.data import ImageFolder, InspectionImages, PictureReader
from taming.evaluation.distances import FrechetDistance
from taming.evaluation.features import FeatureExtractor
from taming.evaluation.metrics import (
    CodebookUsage,
    LPIPSMetric,
    ReconstructionMetrics,
    metrics_device,
)
from taming.evaluation.tiling import reconstruct_tiled
from taming.losses import LPIPSLoss
from taming.pictures import pixel_grid, to_uint8
from taming.runtime.errors import UserError, join_names, writing
from taming.runtime.process_group import (
    gather,
    largest_share,
    on_first_rank,
    rank,
    rank_share,
    sum_over_ranks,
)
from taming.tokenizer import VQGAN, height_and_width

__all__ = ["reconstruct_images"]

Byte = Annotated[int, Ge(0), Le(255)]
NUM_GRID_IMAGES = 16
MAX_GRID_SIDE = 512  # pixels of a picture in a grid of several images


def reconstruct_images(
    vqgan: VQGAN,
    path: str | Path,
    output_dir: str | Path,
    *,
    resolution: int | tuple[int, int] | None = None,
    tile: Annotated[int, Ge(1)] | None = None,
    overlap: Annotated[int, Ge(0)] | None = None,
    batch_size: Annotated[int, Ge(1)] = 16,
    max_images: Annotated[int, Ge(1)] | None = None,
    num_workers: Annotated[int, Ge(0)] = 0,
    background: tuple[Byte, Byte, Byte] = (255, 255, 255),
    lpips: Literal["vgg", "alex"] | None = None,
    features: FeatureExtractor | None = None,
    write_images: bool = False,
    side_by_side: bool = True,
) -> tuple[dict[str, Any], list[Path]]:
    """Reconstructs the images at `path`: a folder, a `.zip` file or one image.

    Writes `metrics.json`, the numbers of all images, and `reconstructions.png`, the first images
    next to their reconstructions. The notes count and name broken files, which it leaves out.
    Several processes each take a part of the images.

    Args:
        vqgan: the tokenizer, in evaluation mode.
        path: the images.
        output_dir: directory of the results.
        resolution: (height, width) or one number for a square, to which images are resized and
            center-cropped as in training. None keeps their sizes, cropped to multiples of the
            downsample factor.
        tile: side in pixels of the tiles that larger images are cut into; None for no tiles.
        overlap: pixels that neighbouring tiles share; None for a quarter of a tile.
        batch_size: images at once.
        max_images: the number of images, the first ones; None for all.
        num_workers: processes that load images.
        background: RGB behind transparent pixels.
        lpips: network of LPIPS; None for no LPIPS.
        features: network of the Fréchet distance; None for no distance.
        write_images: whether to write each reconstruction, to `images/NAME.png`.
        side_by_side: whether these files show the image next to its reconstruction.

    Returns:
        The contents of metrics.json, and the files and folders written. Both are empty except on
        the first process.

    Raises:
        MissingPathError: if `path` does not exist.
        UserError: if the images do not suit the model, or files cannot be written.
    """
    output_dir = Path(output_dir).expanduser()
    vqgan.require_pictures()
    if resolution is not None:
        vqgan.grid_size_for(height_and_width(resolution))
    if tile is not None and tile % vqgan.downsample_factor:
        raise UserError(
            f"tile={tile} must be a multiple of {vqgan.downsample_factor}, the downsample factor."
        )
    if overlap is None:
        overlap = (tile or 0) // 4
    elif tile is None or overlap > tile // 2:
        raise UserError(f"overlap={overlap} needs tile=PIXELS of {2 * overlap} or more.")
    if write_images and rank() == 0 and (output_dir / "images").exists():
        raise UserError(f"{output_dir / 'images'} exists already. Give another output_dir.")
    min_side = max(ReconstructionMetrics.min_side, LPIPSLoss.MIN_SIDES[lpips] if lpips else 0)
    images = on_first_rank(
        lambda: InspectionImages(
            ImageFolder(path, PictureReader(1 if vqgan.image_channels == 1 else 3, background)),
            downsample_factor=vqgan.downsample_factor,
            resolution=resolution,
            min_side=min_side,
            max_images=max_images,
        )
    )
    batches = list(rank_share(images.batches(min(batch_size, largest_share(len(images))))))
    codebook = CodebookUsage(vqgan.codebook_size)
    metrics_list: list[Metric] = [ReconstructionMetrics()]
    networks: dict[str, str] = {}
    if lpips is not None:
        metrics_list.append(LPIPSMetric(LPIPSLoss(backbone=lpips)))
        networks["lpips_network"] = lpips
    if features is not None:
        metrics_list.append(FrechetDistance(features))
        networks["frechet_features"] = features.description
    device = metrics_device(vqgan.device)
    metrics = MetricCollection([*metrics_list, codebook], compute_groups=False).to(device)
    pictures = _Pictures(images, output_dir / "images" if write_images else None, side_by_side)
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        total = sum(map(len, batches))
        bar = tqdm(total=total, unit="image", desc="reconstructing", disable=rank() > 0)
        with torch.inference_mode(), bar:
            for numbers, batch in images.load(batches, num_workers):
                reconstructions, code_counts = reconstruct_tiled(vqgan, batch, tile, overlap)
                metrics.update(
                    reconstructions=reconstructions.float().to(device),
                    images=batch.to(device),
                    code_counts=code_counts.to(device),
                )
                pictures.add(numbers, batch, reconstructions)
                bar.update(len(numbers))
        for pairs in gather(pictures.pairs)[1:]:
            pictures.pairs |= pairs
        num_latents = int(sum_over_ranks(codebook.counts.sum()))
        values = {name: float(value) for name, value in metrics.compute().items()}
        if rank() > 0:
            return {}, []
        results: dict[str, Any] = {
            "num_images": len(images),
            "resolution": list(images.sizes[0]) if len(set(images.sizes)) == 1 else None,
            **values,
            **networks,
            "codebook_size": vqgan.codebook_size,
            "num_latents": num_latents,
            "tile": tile,
            "overlap": overlap if tile is not None else None,
            "num_cropped": images.num_cropped,
            "num_magnified": images.num_magnified,
            "broken": [list(entry) for entry in images.broken],
        }
        results["notes"] = _notes(results, images, features)
        (output_dir / "metrics.json").write_text(json.dumps(results, indent=2) + "\n")
        pictures.grid().save(output_dir / "reconstructions.png")
    names = ["reconstructions.png", "metrics.json", *(["images"] if write_images else [])]
    return results, [output_dir / name for name in names]


class _Pictures:
    """Collects the first images and reconstructions for a grid, and writes all if asked to."""

    def __init__(
        self, images: InspectionImages, directory: Path | None, side_by_side: bool
    ) -> None:
        self.pairs: dict[int, list[Image.Image]] = {}
        self._names = _file_names([images.folder.name(number) for number in range(len(images))])
        self._directory, self._side_by_side = directory, side_by_side

    def add(self, numbers: Sequence[int], images: Tensor, reconstructions: Tensor) -> None:
        """Adds a batch; both are `(b c H W)` in [-1, 1]."""
        pairs = zip(numbers, to_uint8(images), to_uint8(reconstructions), strict=True)
        for number, *pair in pairs:
            if self._directory is not None:
                file = self._directory / self._names[number]
                file.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.concatenate(pair if self._side_by_side else pair[1:], axis=1)
                Image.fromarray(pixels).save(file)
            if number < NUM_GRID_IMAGES:
                self.pairs[number] = [Image.fromarray(pixels) for pixels in pair]
                if len(self._names) > 1:
                    for picture in self.pairs[number]:
                        picture.thumbnail((MAX_GRID_SIDE, MAX_GRID_SIDE))

    def grid(self) -> Image.Image:
        """Lays out the first pairs, four per row, each padded to the size of the largest."""
        pictures = [picture for number in sorted(self.pairs) for picture in self.pairs[number]]
        size = max(one.width for one in pictures), max(one.height for one in pictures)
        cells = [np.asarray(ImageOps.pad(picture, size, color="white")) for picture in pictures]
        return pixel_grid(np.stack(cells), num_columns=min(8, len(cells)))


def _notes(
    results: dict[str, Any], images: InspectionImages, features: FeatureExtractor | None
) -> list[str]:
    notes = []
    if images.broken:
        reasons = join_names([f"{name}: {why}" for name, why in images.broken], separator="; ")
        notes.append(f"{len(images.broken)} broken files left out ({reasons}).")
    if images.num_cropped:
        factor = images.downsample_factor
        notes.append(f"{images.num_cropped} images center-cropped to multiples of {factor} pixels.")
    if images.num_magnified:
        notes.append(f"{images.num_magnified} images enlarged to the resolution.")
    if results["num_latents"] < results["codebook_size"]:
        notes.append(
            f"{results['num_latents']} latents cannot use all {results['codebook_size']} codes, so "
            "codebook usage says little."
        )
    return notes + ([] if features is None else features.notes(results["num_images"]))


def _file_names(names: Sequence[str]) -> list[str]:
    """Returns `a/1.png` for `a/1.jpg`, or `a/1.jpg.png` if another image would get that name."""
    paths = [PurePosixPath(name.lstrip("/")) for name in names]
    count = Counter(path.with_suffix("") for path in paths)
    stems = [path if count[path.with_suffix("")] > 1 else path.with_suffix("") for path in paths]
    return [f"{stem}.png" for stem in stems]
