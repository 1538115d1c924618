"""Images through a tokenizer and back, measured and written to disk."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from PIL import Image
from torch import Tensor
from torchmetrics import Metric
from tqdm import tqdm

from taming.data import ImageFolder, InspectionImages, PictureReader
from taming.errors import UserError, writing
from taming.evaluation import (
    CodebookUsage,
    FeatureExtractor,
    FrechetDistance,
    LPIPSMetric,
    ReconstructionMetrics,
    reconstruct_tiled,
)
from taming.losses import LPIPSLoss
from taming.pictures import reconstruction_grid, to_uint8
from taming.vqgan import VQGAN

__all__ = ["ReconstructionReport", "reconstruct_images"]

Byte = Annotated[int, Ge(0), Le(255)]
NUM_GRID_IMAGES = 16
MAX_GRID_SIDE = 512  # pixels of a picture, if there are several


@dataclass
class ReconstructionReport:
    """What `reconstruct_images` found and wrote.

    Attributes:
        numbers: the contents of metrics.json.
        notes: what is unusual, a sentence each.
        written: files and folders.
    """

    numbers: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


def reconstruct_images(
    vqgan: VQGAN,
    path: str | Path,
    output_dir: str | Path,
    *,
    resolution: int | Sequence[int] | None = None,
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
) -> ReconstructionReport:
    """Reconstructs the images at `path`, a folder, a `.zip` file or an image.

    Into `output_dir` go `reconstructions.png`, the first images beside their reconstructions;
    `metrics.json`, the numbers over all images; with `write_images`, `images/NAME.png`. Broken
    files are left out, counted and named.

    Args:
        vqgan: the tokenizer, in evaluation mode, on the device to use.
        path: where the images are.
        output_dir: where to write.
        resolution: None: every image at its own size, cut in the middle to multiples of the
            downsample factor; else pixels, one number (square) or (height, width), that every image
            is resized and cropped in the middle to, as for training.
        tile: pixels a side of the tiles that larger images are cut into; None: no tiles.
        overlap: pixels that neighbouring tiles share, at most half a tile; None: a quarter.
        batch_size: images at once, of equal size.
        max_images: only the first so many; None: all.
        num_workers: processes that load images.
        background: RGB, 0 to 255, behind transparent parts.
        lpips: network of LPIPS; None: not measured.
        features: network for the Fréchet distance; None: not measured.
        write_images: also write each image as a PNG into `images/`.
        side_by_side: in these show the image beside its reconstruction, not that alone.

    Raises:
        MissingPathError: if there is nothing at `path`.
        UserError: if the images do not suit the model, or the files cannot be written.
    """
    output_dir = Path(output_dir).expanduser()
    factor = vqgan.downsample_factor
    if vqgan.label_maps:
        raise UserError(
            f"the model takes label maps of {vqgan.image_channels} channels, and reconstruct takes "
            "models of pictures only."
        )
    if tile is not None and tile % factor:
        raise UserError(
            f"tile={tile} does not divide by the model's downsample factor {factor}: give a "
            f"multiple of {factor}."
        )
    if overlap is not None and not 0 <= overlap <= (tile or 0) // 2:
        raise UserError(
            f"overlap={overlap} is at most half of tile={tile}."
            if tile
            else f"overlap={overlap} is of tiles: give tile=PIXELS too."
        )
    if overlap is None:
        overlap = (tile or 0) // 4
    if write_images and (output_dir / "images").exists():
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
    reader = PictureReader(1 if vqgan.image_channels == 1 else 3, background)
    images = InspectionImages(
        ImageFolder(path, reader),
        factor=factor,
        resolution=resolution,
        min_side=max(ReconstructionMetrics.MIN_SIDE, LPIPSLoss.MIN_SIDES[lpips] if lpips else 0),
        max_images=max_images,
    )
    device = vqgan.last_layer.device
    device = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    metrics: list[Metric] = [ReconstructionMetrics()]
    if lpips is not None:
        metrics.append(LPIPSMetric(LPIPSLoss(backbone=lpips)))
    if features is not None:
        metrics.append(FrechetDistance(features))
    metrics = [metric.to(device) for metric in metrics]
    codebook = CodebookUsage(vqgan.codebook_size).to(device)
    sizes: Counter[tuple[int, ...]] = Counter()
    names = _file_names([images.source.name(number) for number in images.numbers])
    files = dict(zip(images.numbers, names, strict=True))
    first = set(images.numbers[:NUM_GRID_IMAGES])
    max_side = MAX_GRID_SIDE if len(first) > 1 else None
    shown: dict[int, list[Tensor]] = {}
    written = []
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=len(images), unit="image", desc="reconstructing")
        with torch.inference_mode(), bar:
            for numbers, batch in images.batches(batch_size, num_workers):
                outputs, code_counts = reconstruct_tiled(vqgan, batch, tile, overlap)
                outputs = outputs.float().clamp(-1, 1)
                for metric in metrics:
                    metric.update(outputs.to(device), batch.to(device))
                codebook.update(code_counts.to(device))
                sizes[tuple(batch.shape[2:])] += len(batch)
                for number, *pair in zip(numbers, batch, outputs, strict=True):
                    if write_images:
                        picture = torch.cat(pair if side_by_side else pair[1:], -1)
                        _write(picture, output_dir / "images" / files[number])
                    if number in first:
                        shown[number] = [_shrunk(image, max_side) for image in pair]
                bar.update(len(numbers))
        if shown:  # unless the first images were all broken
            written.append(output_dir / "reconstructions.png")
            _grid([shown[number] for number in sorted(shown)]).save(written[-1])
        report = ReconstructionReport(
            {
                "num_images": sizes.total(),
                "resolution": list(next(iter(sizes))) if len(sizes) == 1 else None,  # several
                **{
                    name: float(value)
                    for metric in (*metrics, codebook)
                    for name, value in metric.compute().items()
                },
                **({} if lpips is None else {"lpips_network": lpips}),
                **({} if features is None else {"frechet_features": features.description}),
                "codebook_size": vqgan.codebook_size,
                "num_latents": int(codebook.counts.sum()),
                "tile": tile,
                "overlap": overlap if tile is not None else None,
                "num_cropped": images.num_cropped,
                "num_magnified": images.num_magnified,
                "broken": [list(entry) for entry in images.broken],
            },
            _notes(images, codebook, sizes.total(), features),
        )
        written.append(output_dir / "metrics.json")
        written[-1].write_text(json.dumps(report.numbers, indent=2) + "\n")
    report.written = written + ([output_dir / "images"] if write_images else [])
    return report


def _notes(
    images: InspectionImages,
    codebook: CodebookUsage,
    num_images: int,
    features: FeatureExtractor | None,
) -> list[str]:
    notes = []
    if images.broken:
        notes.append(f"{len(images.broken)} broken files left out ({images.describe_broken()}).")
    if images.num_cropped:
        notes.append(
            f"{images.num_cropped} images cut in the middle to multiples of {images.factor} pixels."
        )
    if images.num_magnified:
        notes.append(f"{images.num_magnified} images smaller than the resolution and enlarged.")
    num_latents, codebook_size = int(codebook.counts.sum()), len(codebook.counts)
    if num_latents < codebook_size:
        notes.append(
            f"{num_latents} latents cannot use more of the {codebook_size} codes than "
            f"{num_latents / codebook_size:.1%}: usage says little."
        )
    if features is not None and num_images <= features.num_features:
        notes.append(
            f"{num_images} images are no more than the network's {features.num_features} "
            "features: do not compare the Fréchet distance with one of more images."
        )
    return notes


def _file_names(names: Sequence[str]) -> list[str]:
    """`a/1.jpg` to `a/1.png`, and `a/1.jpg.png` where another image would have the same."""
    safe = [
        PurePosixPath(*(part for part in PurePosixPath(name).parts if part not in ("/", "..")))
        for name in names
    ]
    count = Counter(path.with_suffix("") for path in safe)
    return [
        f"{path if count[path.with_suffix('')] > 1 else path.with_suffix('')}.png" for path in safe
    ]


def _write(image: Tensor, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(to_uint8(image[None])[0]).save(path)


def _shrunk(image: Tensor, max_side: int | None) -> Tensor:
    """`(c H W)` with sides of at most `max_side`."""
    longer = max(image.shape[1:])
    if max_side is None or longer <= max_side:
        return image.clone()  # not a view that keeps the whole batch
    size = [max(1, round(side * max_side / longer)) for side in image.shape[1:]]
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def _grid(pairs: Sequence[Sequence[Tensor]]) -> Image.Image:
    """Images beside their reconstructions; smaller ones on white of the largest one's size."""
    height = max(image.shape[1] for image, _ in pairs)
    width = max(image.shape[2] for image, _ in pairs)
    images, reconstructions = (
        torch.stack(
            [F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1]), value=1.0) for x in column]
        )
        for column in zip(*pairs, strict=True)
    )
    return reconstruction_grid(images, reconstructions)
