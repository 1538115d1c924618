"""Draws images from a generator and writes them to disk."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import class_difference
from taming.generation.generator import ImageGenerator
from taming.generation.inputs import ImagesToComplete, InputImages, SampleInputs, find_inputs
from taming.generation.options import SamplingOptions
from taming.generation.rejection import sample_best
from taming.generation.speed import SamplingDtype
from taming.pictures import palette_of, pixel_grid, side_by_side, to_uint8
from taming.runtime.errors import UserError, writing
from taming.runtime.process_group import gather_in_order, largest_share, rank, rank_share

__all__ = ["sample_images"]

log = logging.getLogger(__name__)

Classifier = Callable[[Tensor], Tensor]
MAX_GRID_IMAGES = 100


class Samples(NamedTuple):
    """Drawn images, and what the user sees of them."""

    arrays: np.ndarray  # uint8 (n H W 3); with other channels than 1 or 3 float32 (n H W c)
    pictures: np.ndarray  # uint8 (m k H W 3), the first m images: their inputs, then the sample
    probabilities: np.ndarray  # (n,) of the requested class; (0,) without a classifier


def sample_images(
    generator: ImageGenerator,
    output_dir: str | Path,
    *,
    options: SamplingOptions | None = None,
    num_images: Annotated[int, Ge(1)] | None = None,
    classes: int | str | Sequence[int | str] | None = None,
    conditions: InputImages | None = None,
    complete: ImagesToComplete | None = None,
    classifier: Classifier | None = None,
    candidates: Annotated[int, Ge(1)] = 10,
    write_images: bool = False,
    dtype: SamplingDtype = "float32",
) -> tuple[list[str], list[Path]]:
    """Draws images and writes them into `output_dir`.

    `samples.npz` holds `arr_0`, uint8 `(n h w 3)`, and, for a model of classes, `arr_1`, int64
    labels. `samples.png` shows the first images with their classes, condition images and images to
    complete. Label maps appear in colours.

    Args:
        generator: the model; this function converts its weights to `dtype`.
        output_dir: where to write. It must not contain `images/`.
        options: how to draw.
        num_images: None: as many as conditions or images to complete, whichever are more; 16
            without either.
        classes: labels or names, which the images take in turn. "none" requests no class, unless a
            class has this name. None: all classes in turn. An image to complete then has the class
            that its folder is named after. If no folder is named after a class and the model can
            do without a class, no class is requested.
        conditions: condition images, taken in turn.
        complete: images to complete, taken in turn. If some have the same names as conditions, all
            must.
        classifier: selects the best of several candidates for each image; see `sample_best`.
        candidates: number of candidates.
        write_images: whether to write each image to its own file in `images/`.
        dtype: precision of the weights; see `ImageGenerator.prepare_sampling`.

    Returns:
        Notes for the user, and the files and folders it wrote.

    Raises:
        MissingPathError: if there are no images at a path.
        UserError: for what the model does not support, or if the files cannot be written.
    """
    output_dir = Path(output_dir).expanduser()
    if (output_dir / "images").exists():  # older images would look like those in samples.npz
        raise UserError(f"{output_dir / 'images'} exists already: set another output_dir.")
    options = options or SamplingOptions(seed=0)
    grid_size = options.grid_size or generator.grid_size
    classes = [classes] if isinstance(classes, int | str) else classes
    inputs = find_inputs(
        generator, grid_size, num_images, classes,
        conditions or InputImages(), complete or ImagesToComplete(),
    )  # fmt: skip
    if classifier is not None:
        _check_classifier(classifier, generator, inputs)
    rows, columns = grid_size
    notes = options.guidance.notes(rows * columns, inputs.keep_rows * columns)
    paste = complete is not None and complete.paste
    if inputs.painting is not None:
        top, left, bottom, right = inputs.painting.grow
        factor = generator.require_tokenizer().downsample_factor
        grown = rows + (top + bottom) // factor, columns + (left + right) // factor
        options = replace(options, grid_size=grown)
    notes += [] if inputs.note is None else [inputs.note]
    share = largest_share(inputs.num_images)
    num_drawn = share if classifier is None else share * candidates
    # a compiled step is for batches of one size
    options = replace(options, batch_size=min(options.images_at_once, share))
    options = generator.prepare_sampling(options, dtype, num_drawn)
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        samples = _draw(generator, options, inputs, classifier, candidates, paste)
        if samples is None:
            return notes, []
        if len(samples.probabilities):
            notes.append(
                f"the classifier gives the selected images {samples.probabilities.mean():.0%} "
                "for their class, on average."
            )
        num_classes = len(classes or range(generator.conditioning.num_classes or 0))
        return notes, _write(samples, generator, inputs, num_classes, output_dir, write_images)


def _check_classifier(
    classifier: Classifier, generator: ImageGenerator, inputs: SampleInputs
) -> None:
    if inputs.labels is None:
        raise UserError(
            "rejection.classifier needs a requested class. Use a model of classes, and choose some "
            "with `classes`."
        )
    if hasattr(classifier, "num_classes") and hasattr(classifier, "class_names"):
        difference = class_difference(classifier, generator.conditioning)
        if difference is not None:
            raise UserError(f"rejection.classifier does not fit the model: {difference}.")


def _draw(
    generator: ImageGenerator,
    options: SamplingOptions,
    inputs: SampleInputs,
    classifier: Classifier | None,
    candidates: int,
    paste: bool,
) -> Samples | None:
    """Draws batch after batch, each process its share. Only the first process gets the samples."""
    if options.compile:
        log.info("compiling first: the progress bar pauses for about half a minute")
    total, size = inputs.num_images, options.images_at_once
    batches = [range(start, min(start + size, total)) for start in range(0, total, size)]
    single = len(batches) == 1  # the bar then counts its tokens or candidates
    palette = palette_of(generator.tokenizer)
    has_pictures = palette is not None or generator.require_tokenizer().takes_pictures
    colors = getattr(generator.conditioning, "palette", None)
    condition_palette = palette_of(generator.condition_tokenizer, colors)

    def draw(numbers: range) -> Samples:
        condition, images = inputs.condition(numbers), inputs.to_complete(numbers)
        mask = inputs.mask(numbers)
        settings: dict[str, Any] = {
            "options": options, "progress": single, "first_image": numbers.start,
        }  # fmt: skip
        columns, probabilities = [], np.empty(0)
        if images is not None and mask is not None:
            settings["given_tokens"] = generator.known_tokens(images, mask)
            columns.append(to_uint8(images.where(~mask[:, None], 0), palette))
        elif images is not None:
            settings["given_tokens"] = generator.first_tokens(images, inputs.keep_rows)
            columns.append(to_uint8(images, palette))
        if classifier is None:
            samples = generator.sample(len(numbers), condition, **settings)
        else:
            assert condition is not None
            best = sample_best(
                generator, classifier, len(numbers), condition, candidates, **settings
            )
            samples, probabilities = best.images, best.probabilities.cpu().numpy()
        if paste and has_pictures and images is not None and mask is not None:
            samples = generator.paste(samples, images, mask)
        pixels = to_uint8(samples, palette)
        columns.append(pixels)
        if not has_pictures:
            pixels = samples.permute(0, 2, 3, 1).float().cpu().numpy()
        condition_images = condition if inputs.conditions is not None else None
        pictures = side_by_side(columns, condition_images, condition_palette)
        first_pictures = pictures[
            : max(0, MAX_GRID_IMAGES - numbers.start)
        ].copy()  # frees the rest
        return Samples(pixels, first_pictures, probabilities)

    parts = []
    with tqdm(total=total, unit="image", desc="sampling", disable=single or rank() > 0) as bar:
        for part in gather_in_order(map(draw, rank_share(batches)), len(batches)):
            parts.append(part)
            bar.update(len(part.arrays))
    if rank() > 0:
        return None
    return Samples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _write(
    samples: Samples,
    generator: ImageGenerator,
    inputs: SampleInputs,
    num_classes: int,
    output_dir: Path,
    write_images: bool,
) -> list[Path]:
    """Writes the files of `sample_images`; returns their paths."""
    labels = [] if inputs.labels is None else inputs.labels.tolist()
    arrays = [samples.arrays] if inputs.labels is None else [samples.arrays, np.array(labels)]
    paths = [output_dir / "samples.npz", output_dir / "samples.png"]
    np.savez(paths[0], *arrays)  # compressing gigabytes takes a single core minutes
    class_names = generator.class_names or range(generator.conditioning.num_classes or 0)
    names = [str(class_names[label]) for label in labels]
    _grid(samples.pictures, names, num_classes).save(paths[1])
    if write_images:
        paths.append(output_dir / "images")
        _write_images(samples.arrays, names, inputs, paths[-1])
    return paths


def _grid(pictures: np.ndarray, class_names: list[str], num_classes: int) -> Image.Image:
    """Lays out the first images, `(n k H W 3)`: k pictures side by side for each."""
    width = pictures.shape[1]
    pictures = pictures[: MAX_GRID_IMAGES // width]
    num_columns = width * math.ceil(math.sqrt(len(pictures) / width))
    if width == 1 and class_names and 4 <= num_classes <= 16:
        num_columns = num_classes  # a column for each class
    captions = [text for name in class_names for text in [""] * (width - 1) + [name]]
    return pixel_grid(pictures.reshape(-1, *pictures.shape[2:]), num_columns, captions)


def _write_images(
    arrays: np.ndarray, class_names: list[str], inputs: SampleInputs, directory: Path
) -> None:
    """Writes each image as a PNG or an array, with the name of its input file or class."""
    directory.mkdir()
    for number, image in enumerate(arrays):
        name, source = f"{number:06d}", inputs.name(number)
        if source is not None:
            name += f"_{PurePosixPath(source).stem}"
        elif class_names:
            name += f"_{class_names[number]}"
        safe_name = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        if image.dtype == np.uint8:
            Image.fromarray(image).save(directory / f"{safe_name}.png")
        else:
            np.save(directory / f"{safe_name}.npy", image)
