"""Reconstructs images with a tokenizer, measures how well and writes the results to disk."""

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
from taming.evaluation import (
    CodebookUsage,
    FeatureExtractor,
    FrechetDistance,
    LPIPSMetric,
    ReconstructionMetrics,
    reconstruct_tiled,
)
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
MAX_GRID_SIDE = 512  # pixels of a picture, if there are several


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
    """Reconstructs the images at `path`, a folder, a `.zip` file or an image.

    Into `output_dir` go `reconstructions.png`, the first images beside their reconstructions;
    `metrics.json`, the numbers over all images; with `write_images`, `images/NAME.png`, the image
    beside its reconstruction with `side_by_side`. Broken files are left out, counted and named.

    With a `resolution` every image is resized and cropped in the middle, as for training; without
    it keeps its size, cropped to multiples of the downsample factor. Those larger than a `tile` are
    cut into tiles that share `overlap` pixels, a quarter of a tile unless given. `lpips` names the
    network of LPIPS, `background` is RGB behind transparent parts.

    Several processes each take a part of the images, and the first one returns the results.

    Returns:
        The contents of metrics.json, and the files and folders written.

    Raises:
        MissingPathError: if there is nothing at `path`.
        UserError: if the images do not suit the model, or the files cannot be written.
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
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
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
    device = vqgan.device
    device = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    codebook = CodebookUsage(vqgan.codebook_size)
    chosen: list[Metric] = [ReconstructionMetrics()]
    about: dict[str, Any] = {}
    if lpips is not None:
        chosen.append(LPIPSMetric(LPIPSLoss(backbone=lpips)))
        about["lpips_network"] = lpips
    if features is not None:
        chosen.append(FrechetDistance(features))
        about["frechet_features"] = features.description
    metrics = MetricCollection([*chosen, codebook], compute_groups=False).to(device)
    sizes: Counter[tuple[int, ...]] = Counter()
    directory = output_dir / "images"
    pictures = _Pictures(images, directory if write_images else None, side_by_side)
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        total = sum(map(len, batches))
        bar = tqdm(total=total, unit="image", desc="reconstructing", disable=rank() > 0)
        with torch.inference_mode(), bar:
            for numbers, batch in images.load(batches, num_workers):
                outputs, code_counts = reconstruct_tiled(vqgan, batch, tile, overlap)
                metrics.update(
                    reconstructions=outputs.float().to(device),
                    images=batch.to(device),
                    code_counts=code_counts.to(device),
                )
                sizes[tuple(batch.shape[2:])] += len(batch)
                pictures.add(numbers, batch, outputs)
                bar.update(len(numbers))
        for other_sizes, other_pictures in gather((sizes, pictures.shown))[1:]:
            sizes += other_sizes
            pictures.shown |= other_pictures
        num_latents = int(sum_over_ranks(codebook.counts.sum()))
        measured = {name: float(value) for name, value in metrics.compute().items()}
        if rank() > 0:
            return {}, []
        found = {
            "num_images": sizes.total(),
            "resolution": list(next(iter(sizes))) if len(sizes) == 1 else None,  # several
            **measured,
            **about,
            "codebook_size": vqgan.codebook_size,
            "num_latents": num_latents,
            "tile": tile,
            "overlap": overlap if tile is not None else None,
            "num_cropped": images.num_cropped,
            "num_magnified": images.num_magnified,
            "broken": [list(entry) for entry in images.broken],
        }
        found["notes"] = _notes(found, images, features)
        (output_dir / "metrics.json").write_text(json.dumps(found, indent=2) + "\n")
        pictures.grid().save(output_dir / "reconstructions.png")
    names = ["reconstructions.png", "metrics.json", *(["images"] if write_images else [])]
    return found, [output_dir / name for name in names]


class _Pictures:
    """Writes each image beside its reconstruction if asked to, and keeps the first for a grid."""

    def __init__(
        self, images: InspectionImages, directory: Path | None, side_by_side: bool
    ) -> None:
        self.shown: dict[int, list[Image.Image]] = {}
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
                self.shown[number] = [Image.fromarray(pixels) for pixels in pair]
                if len(self._names) > 1:
                    for picture in self.shown[number]:
                        picture.thumbnail((MAX_GRID_SIDE, MAX_GRID_SIDE))

    def grid(self) -> Image.Image:
        """Lays out the first pairs, four a row, each fitted into a cell of the largest's size."""
        pictures = [picture for number in sorted(self.shown) for picture in self.shown[number]]
        size = max(one.width for one in pictures), max(one.height for one in pictures)
        cells = [np.asarray(ImageOps.pad(picture, size, color="white")) for picture in pictures]
        return pixel_grid(np.stack(cells), num_columns=min(8, len(cells)))


def _notes(
    found: dict[str, Any], images: InspectionImages, features: FeatureExtractor | None
) -> list[str]:
    notes = []
    if images.broken:
        reasons = join_names([f"{name}: {why}" for name, why in images.broken], separator="; ")
        notes.append(f"{len(images.broken)} broken files left out ({reasons}).")
    if images.num_cropped:
        notes.append(
            f"{images.num_cropped} images cropped in the middle to multiples of "
            f"{images.downsample_factor} pixels."
        )
    if images.num_magnified:
        notes.append(f"{images.num_magnified} images smaller than the resolution and enlarged.")
    if found["num_latents"] < found["codebook_size"]:
        notes.append(
            f"{found['num_latents']} latents cannot use all {found['codebook_size']} codes: usage "
            "says little."
        )
    return notes + ([] if features is None else features.notes(found["num_images"]))


def _file_names(names: Sequence[str]) -> list[str]:
    """Names the results: `a/1.png` for `a/1.jpg`, or `a/1.jpg.png` where two would be the same."""
    paths = [PurePosixPath(name.lstrip("/")) for name in names]
    count = Counter(path.with_suffix("") for path in paths)
    stems = [path if count[path.with_suffix("")] > 1 else path.with_suffix("") for path in paths]
    return [f"{stem}.png" for stem in stems]
