"""Images from a generator, written to disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from taming.errors import UserError
from taming.evaluation import image_grid, to_uint8
from taming.generation import ImageGenerator

__all__ = ["SampleSettings", "sample_images"]

MAX_GRID_IMAGES = 100


@dataclass(frozen=True)
class SampleSettings:
    """What to sample.

    Attributes:
        num_images: how many.
        classes: labels or class names (or one of them) that the images take in turn; a number is
            always a label. None: all classes in turn, or none for an unconditional model.
        temperature, top_k, top_p, greedy, seed, batch_size: see `ImageGenerator.sample_tokens`.
        write_images: also write each image as a PNG into `images/`.
    """

    num_images: int = 16
    classes: Sequence[int | str] | int | str | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    seed: int = 0
    batch_size: int = 64
    write_images: bool = False


def sample_images(
    generator: ImageGenerator, settings: SampleSettings, output_dir: Path
) -> list[Path]:
    """Samples, and writes into `output_dir`; returns what was written.

    `samples.npz` holds `arr_0`, uint8 `(n h w 3)`, and `arr_1`, int64 labels, where there are
    classes. `samples.png` shows the first hundred images, with the class above each.

    Raises:
        UserError: for settings the model cannot do, or if the files cannot be written.
    """
    labels = _labels(generator, settings)
    if settings.write_images and (output_dir / "images").exists():
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    pixels, shown = _sample_in_batches(generator, settings, labels)
    captions = None
    if labels is not None:
        names = generator.class_names or [str(c) for c in range(int(labels.max()) + 1)]
        captions = [names[label] for label in labels.tolist()]
    grid = image_grid(
        shown,
        num_columns=_num_columns(generator, settings),
        captions=captions[: len(shown)] if captions else None,
    )
    arrays = [pixels] + ([] if labels is None else [labels.numpy()])
    written = [output_dir / "samples.npz", output_dir / "samples.png"]
    try:
        np.savez_compressed(written[0], *arrays)
        grid.save(written[1])
        if settings.write_images:
            written.append(output_dir / "images")
            written[-1].mkdir(exist_ok=True)
            for number, image in enumerate(pixels):
                class_name = f"_{_file_name(captions[number])}" if captions else ""
                Image.fromarray(image).save(written[-1] / f"{number:06d}{class_name}.png")
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    return written


def _sample_in_batches(
    generator: ImageGenerator, settings: SampleSettings, labels: torch.Tensor | None
) -> tuple[np.ndarray, torch.Tensor]:
    """All images as uint8 `(n H W 3)`, and the first ones `(b c H W)` to show.

    No more than a batch is ever on the device. The bar counts images, in a single batch tokens.
    """
    num_images, batch_size = settings.num_images, settings.batch_size
    if num_images < 1 or batch_size < 1:
        raise UserError(
            f"num_images={num_images}, batch_size={batch_size}: both must be 1 or more."
        )
    single = num_images <= batch_size
    pixels, shown = [], []
    with tqdm(total=num_images, unit="image", desc="sampling", disable=single) as bar:
        for start in range(0, num_images, batch_size):
            count = min(batch_size, num_images - start)
            images = generator.sample(
                count,
                None if labels is None else labels[start : start + count],
                settings.temperature,
                settings.top_k,
                settings.top_p,
                settings.greedy,
                settings.seed,
                batch_size=batch_size,
                first_image=start,
                progress=single,
            )
            pixels.append(to_uint8(images))
            if start < MAX_GRID_IMAGES:
                shown.append(images.cpu())
            bar.update(count)
    return np.concatenate(pixels), torch.cat(shown)[:MAX_GRID_IMAGES]


def _labels(generator: ImageGenerator, settings: SampleSettings) -> torch.Tensor | None:
    num_classes = generator.conditioning.num_classes
    if num_classes is None:
        if settings.classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return None
    chosen = _chosen_classes(settings)
    if chosen is None:
        chosen = list(range(num_classes))
    if not chosen:
        raise UserError("`classes` is empty: name a class, or leave it out for all in turn.")
    names = list(generator.class_names or [])
    labels = [names.index(c) if isinstance(c, str) and c in names else c for c in chosen]
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < num_classes:
            known = f" ({', '.join(names[:20])}{', …' if len(names) > 20 else ''})" if names else ""
            raise UserError(
                f"class {label!r} does not exist in this model: it has the labels 0 to "
                f"{num_classes - 1}{known}."
            )
    return torch.tensor([int(labels[i % len(labels)]) for i in range(settings.num_images)])


def _chosen_classes(settings: SampleSettings) -> list[int | str] | None:
    if settings.classes is None:
        return None
    return [settings.classes] if isinstance(settings.classes, int | str) else list(settings.classes)


def _num_columns(generator: ImageGenerator, settings: SampleSettings) -> int | None:
    """A column a class where that gives a readable grid."""
    count = generator.conditioning.num_classes
    chosen = _chosen_classes(settings)
    if chosen is not None:
        count = len(chosen)
    return count if count is not None and 4 <= count <= 16 else None


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text)
