"""Images through a tokenizer and back, measured and written to disk."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torchmetrics import Metric
from tqdm import tqdm

from taming.data import ImageFolder, InspectionImages, PictureReader
from taming.errors import UserError
from taming.evaluation import (
    CodebookUsage,
    FeatureExtractor,
    FrechetDistance,
    LPIPSMetric,
    ReconstructionMetrics,
)
from taming.losses import LPIPSLoss
from taming.pictures import reconstruction_grid, to_uint8
from taming.vqgan import VQGAN
from taming.workflows.reconstruction_settings import ReconstructionSettings
from taming.workflows.tiling import reconstruct_tiled

__all__ = ["ReconstructionReport", "reconstruct_images"]

NUM_GRID_IMAGES = 16
MAX_GRID_SIDE = 512  # pixels of a picture, where there are several


@dataclass
class ReconstructionReport:
    """What came of it.

    Attributes:
        numbers: what is in metrics.json.
        notes: what is unusual, a sentence each.
        written: files and folders.
    """

    numbers: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


def reconstruct_images(
    vqgan: VQGAN,
    path: str | Path,
    settings: ReconstructionSettings,
    output_dir: Path,
    features: FeatureExtractor | None = None,
) -> ReconstructionReport:
    """Reconstructs the images at `path`, a folder, a `.zip` file or an image.

    Into `output_dir` go `reconstructions.png`, the first images beside their reconstructions;
    `metrics.json`, the numbers over all images; with `write_images`, `images/NAME.png`. Broken
    files are left out, counted and named.

    Args:
        vqgan: the tokenizer, in evaluation mode, on the device to use.
        path: where the images are.
        settings: see there.
        output_dir: where to write.
        features: network for the Fréchet distance; None: not measured.

    Raises:
        MissingPathError: if there is nothing at `path`.
        UserError: if the images do not suit the model, or the files cannot be written.
    """
    images = _find_images(vqgan, path, settings)
    if settings.write_images and (output_dir / "images").exists():
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
    metrics = _Metrics(vqgan, settings, features)
    names = _file_names([images.source.name(number) for number in images.numbers])
    file_names = dict(zip(images.numbers, names, strict=True))
    first = set(images.numbers[:NUM_GRID_IMAGES])
    max_side = MAX_GRID_SIDE if len(first) > 1 else None
    shown: dict[int, list[torch.Tensor]] = {}
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=len(images), unit="image", desc="reconstructing")
        with torch.inference_mode(), bar:
            for numbers, batch in images.batches(settings.batch_size, settings.num_workers):
                reconstructions, code_counts = reconstruct_tiled(
                    vqgan, batch, settings.tile, settings.tile_overlap
                )
                reconstructions = reconstructions.float().clamp(-1, 1)
                metrics.update(reconstructions, batch, code_counts)
                for number, image, reconstruction in zip(
                    numbers, batch, reconstructions, strict=True
                ):
                    if settings.write_images:
                        pair = (
                            [image, reconstruction] if settings.side_by_side else [reconstruction]
                        )
                        _write(torch.cat(pair, -1), output_dir / "images" / file_names[number])
                    if number in first:
                        shown[number] = [_shrunk(x, max_side) for x in (image, reconstruction)]
                bar.update(len(numbers))
        report = _report(images, settings, metrics)
        report.written = [output_dir / "reconstructions.png", output_dir / "metrics.json"]
        if shown:
            _grid([shown[number] for number in sorted(shown)]).save(report.written[0])
        else:  # the first images were all broken
            del report.written[0]
        report.written[-1].write_text(json.dumps(report.numbers, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    if settings.write_images:
        report.written.append(output_dir / "images")
    return report


class _Metrics:
    """All measures, where they are computed."""

    def __init__(
        self, vqgan: VQGAN, settings: ReconstructionSettings, features: FeatureExtractor | None
    ) -> None:
        device = vqgan.last_layer.device
        self.device = torch.device("cpu") if device.type == "mps" else device  # it has no float64
        self.codebook = CodebookUsage(vqgan.codebook_size).to(self.device)
        self.pairs: list[Metric] = [ReconstructionMetrics().to(self.device)]
        self.networks: dict[str, str] = {}  # name beside the numbers they made
        if settings.lpips is not None:
            lpips = LPIPSMetric(LPIPSLoss(backbone=settings.lpips))
            self.pairs.append(lpips.to(self.device))
            self.networks["lpips_network"] = settings.lpips
        if features is not None:
            self.pairs.append(FrechetDistance(features).to(self.device))
            self.networks["frechet_features"] = features.description
        self.num_features = 0 if features is None else features.num_features
        self.num_images = 0
        self.resolutions: Counter[tuple[int, int]] = Counter()

    def update(
        self, reconstructions: torch.Tensor, images: torch.Tensor, code_counts: torch.Tensor
    ) -> None:
        """Adds two `(b c H W)` and the counts of their codes."""
        reconstructions, images = reconstructions.to(self.device), images.to(self.device)
        self.codebook.update(code_counts.to(self.device))
        for metric in self.pairs:
            metric.update(reconstructions, images)
        self.num_images += len(images)
        self.resolutions[images.shape[2], images.shape[3]] += len(images)

    def compute(self) -> dict[str, float]:
        """All numbers by name."""
        return {
            name: float(value)
            for metric in (*self.pairs, self.codebook)
            for name, value in metric.compute().items()
        }


def _find_images(
    vqgan: VQGAN, path: str | Path, settings: ReconstructionSettings
) -> InspectionImages:
    channels, factor = vqgan.image_channels, vqgan.downsample_factor
    if vqgan.label_maps:
        raise UserError(
            f"the model takes images of {channels} channels and is a tokenizer of label maps: "
            "reconstruct takes models of pictures, with 1 or 3 channels, only."
        )
    if settings.tile is not None and settings.tile % factor:
        raise UserError(
            f"tile={settings.tile} does not divide by the model's downsample factor {factor}: give "
            f"a multiple of {factor}."
        )
    red, green, blue = settings.background
    reader = PictureReader(1 if channels == 1 else 3, (red, green, blue))
    return InspectionImages(
        ImageFolder(path, reader),
        factor=factor,
        resolution=settings.resolution,
        min_side=settings.min_side,
        max_images=settings.max_images,
    )


def _report(
    images: InspectionImages, settings: ReconstructionSettings, metrics: _Metrics
) -> ReconstructionReport:
    sizes = metrics.resolutions
    num_latents = int(metrics.codebook.counts.sum())
    codebook_size = len(metrics.codebook.counts)
    numbers = {
        "num_images": metrics.num_images,
        "resolution": list(next(iter(sizes))) if len(sizes) == 1 else None,  # None: several
        **metrics.compute(),
        **metrics.networks,
        "codebook_size": codebook_size,
        "num_latents": num_latents,
        "tile": settings.tile,
        "overlap": settings.tile_overlap if settings.tile is not None else None,
        "num_cropped": images.num_cropped,
        "num_magnified": images.num_magnified,
        "broken": [list(entry) for entry in images.broken],
    }
    notes = []
    if images.broken:
        notes.append(f"{len(images.broken)} broken files left out ({images.describe_broken()}).")
    if images.num_cropped:
        notes.append(
            f"{images.num_cropped} images cut in the middle to multiples of {images.factor} pixels."
        )
    if images.num_magnified:
        notes.append(f"{images.num_magnified} images smaller than the resolution and enlarged.")
    if num_latents < codebook_size:
        notes.append(
            f"{num_latents} latents cannot use more of the {codebook_size} codes than "
            f"{num_latents / codebook_size:.1%}: usage says little."
        )
    if metrics.num_images <= metrics.num_features:
        notes.append(
            f"{metrics.num_images} images are no more than the network's {metrics.num_features} "
            "features: the Fréchet distance is not to be compared with one of more images."
        )
    return ReconstructionReport(numbers, notes)


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


def _write(image: torch.Tensor, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(to_uint8(image[None])[0]).save(path)


def _shrunk(image: torch.Tensor, max_side: int | None) -> torch.Tensor:
    """`(c H W)` with sides of at most `max_side`."""
    longer = max(image.shape[1:])
    if max_side is None or longer <= max_side:
        return image.clone()  # not a view that keeps the whole batch
    size = [max(1, round(side * max_side / longer)) for side in image.shape[1:]]
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def _grid(pairs: Sequence[Sequence[torch.Tensor]]) -> Image.Image:
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
