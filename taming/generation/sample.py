"""Draws images from a generator and writes them to disk."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import class_difference
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions, sample_best
from taming.generation.inputs import (
    GivenImages,
    ImagesToComplete,
    SampleInputs,
    find_inputs,
)
from taming.pictures import palette_of, pixel_grid, side_by_side, to_uint8
from taming.runtime.errors import UserError, writing
from taming.runtime.process_group import gather_in_order, largest_share, rank, rank_share

__all__ = ["sample_images"]

log = logging.getLogger(__name__)

Classifier = Callable[[Tensor], Tensor]
MAX_GRID_IMAGES = 100


def sample_images(
    generator: ImageGenerator,
    output_dir: str | Path,
    *,
    options: SamplingOptions | None = None,
    num_images: Annotated[int, Ge(1)] | None = None,
    classes: int | str | Sequence[int | str] | None = None,
    conditions: GivenImages | None = None,
    complete: ImagesToComplete | None = None,
    classifier: Classifier | None = None,
    candidates: Annotated[int, Ge(1)] = 10,
    write_images: bool = False,
    dtype: SamplingDtype = "float32",
) -> tuple[list[str], list[Path]]:
    """Draws images and writes them into `output_dir`.

    `samples.npz` holds `arr_0`, uint8 `(n h w 3)`, and `arr_1`, int64 labels, where there are
    classes. `samples.png` shows the first images, each below its class, and beside its condition
    and the image that it completes. Label maps are shown in colours.

    Without `num_images` there are as many as conditions or images to complete, the larger of both
    numbers, or 16. Conditions, images to complete and `classes` are taken in turn; conditions and
    images to complete that share names must all be pairs. `classes` are labels or names; "none"
    requests no class, unless a class has this name. Without `classes` an image to complete takes
    the class that its folder is named after; where no folder is, no class is requested if the model
    can do without. All other images take all classes in turn. With a `classifier` the best of
    `candidates` is kept for each image, see `sample_best`. For `dtype` the generator is converted,
    see `prepare_sampling`.

    Returns:
        Notes for the user, a sentence each, and the files and folders written.

    Raises:
        MissingPathError: if there are no images at a path.
        UserError: for what the model does not support, or if the files cannot be written.
    """
    output_dir = Path(output_dir).expanduser()
    if (output_dir / "images").exists():  # they would be taken for those of samples.npz
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
    options = options or SamplingOptions(seed=0)
    grid_size = options.grid_size or generator.grid_size
    classes = [classes] if isinstance(classes, int | str) else classes
    given = conditions or GivenImages(), complete or ImagesToComplete()
    inputs = find_inputs(generator, grid_size, num_images, classes, *given)
    if classifier is not None:
        if inputs.labels is None:
            raise UserError(
                "rejection.classifier needs a requested class: use a model of classes, and name "
                "some with `classes`."
            )
        if hasattr(classifier, "num_classes") and hasattr(classifier, "class_names"):
            difference = class_difference(classifier, generator.conditioning)
            if difference is not None:
                raise UserError(f"rejection.classifier does not fit the model: {difference}.")
    rows, columns = grid_size
    notes = options.guidance.notes(rows * columns, inputs.keep_rows * columns)
    notes += [] if inputs.note is None else [inputs.note]
    share = largest_share(inputs.num_images)
    num_drawn = share if classifier is None else share * candidates
    # a compiled step is for batches of one size
    options = replace(options, batch_size=min(options.images_at_once, share))
    options = generator.prepare_sampling(options, dtype, num_drawn)
    with writing(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        samples, shown, shares = _draw(generator, options, inputs, classifier, candidates)
        if rank() > 0:
            return notes, []
        if shares:
            notes.append(
                f"the classifier gives the images that were kept {np.mean(shares):.0%} for their "
                "class, on average."
            )
        labels = [] if inputs.labels is None else inputs.labels.tolist()
        arrays = [samples] if inputs.labels is None else [samples, np.array(labels)]
        written = [output_dir / "samples.npz", output_dir / "samples.png"]
        np.savez(written[0], *arrays)  # compressing gigabytes takes a single core minutes
        num_classes = generator.conditioning.num_classes or 0
        known = generator.class_names or range(num_classes)
        names = [str(known[label]) for label in labels]
        _grid(shown, names, num_classes if classes is None else len(classes)).save(written[1])
        if write_images:
            written.append(output_dir / "images")
            _write_images(samples, names, inputs, written[-1])
    return notes, written


def _draw(
    generator: ImageGenerator,
    options: SamplingOptions,
    inputs: SampleInputs,
    classifier: Classifier | None,
    candidates: int,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Draws batch after batch, each process its share, for the first one.

    Returns samples as bytes `(n H W 3)`, those of other channels than 1 or 3 as float32
    `(n H W c)` in [-1, 1], and the first images' pictures `(m k H W 3)`, what each was
    made from and last the sample; and each class's probability, where a classifier chose. In the
    other processes they are empty.
    """
    if options.compile:
        log.info("compiling first: the progress bar stands still for half a minute or so")
    total, size = inputs.num_images, options.images_at_once
    batches = [range(start, min(start + size, total)) for start in range(0, total, size)]
    single = len(batches) == 1  # its tokens or candidates have a progress bar
    palette = palette_of(generator.tokenizer)
    as_numbers = palette is None and not generator.require_tokenizer().takes_pictures
    colors = getattr(generator.conditioning, "palette", None)
    condition_palette = palette_of(generator.condition_tokenizer, colors)

    def draw(numbers: range) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
        condition, images = inputs.condition(numbers), inputs.to_complete(numbers)
        how: dict[str, Any] = {
            "options": options,
            "progress": single,
            "first_image": numbers.start,
        }
        columns, shares = [], []
        if images is not None:
            how["given_tokens"] = generator.first_tokens(images, inputs.keep_rows)
            columns.append(to_uint8(images, palette))
        if classifier is None:
            samples = generator.sample(len(numbers), condition, **how)
        else:
            assert condition is not None
            best = sample_best(generator, classifier, len(numbers), condition, candidates, **how)
            samples, shares = best.images, best.probabilities.tolist()
        columns.append(to_uint8(samples, palette))
        pixels = columns[-1]
        if as_numbers:
            pixels = samples.permute(0, 2, 3, 1).float().cpu().numpy()
        if numbers.start >= MAX_GRID_IMAGES:
            return pixels, [], shares
        images_shown = condition if inputs.conditions is not None else None
        return pixels, list(side_by_side(columns, images_shown, condition_palette)), shares

    all_samples, all_shown, all_shares = [], [], []
    with tqdm(total=total, unit="image", desc="sampling", disable=single or rank() > 0) as bar:
        for samples, shown, shares in gather_in_order(map(draw, rank_share(batches)), len(batches)):
            all_samples.append(samples)
            all_shown += shown
            all_shares += shares
            bar.update(len(samples))
    if rank() > 0:
        return np.empty(0), np.empty(0), []
    return np.concatenate(all_samples), np.stack(all_shown), all_shares


def _grid(shown: np.ndarray, class_names: list[str], num_classes: int) -> Image.Image:
    """Lays out the first images, `(n k H W 3)`: k pictures side by side for each."""
    width = shown.shape[1]
    shown = shown[: MAX_GRID_IMAGES // width]
    num_columns = width * math.ceil(math.sqrt(len(shown) / width))
    if width == 1 and class_names and 4 <= num_classes <= 16:
        num_columns = num_classes  # a column a class
    captions = [text for name in class_names for text in [""] * (width - 1) + [name]]
    return pixel_grid(shown.reshape(-1, *shown.shape[2:]), num_columns, captions)


def _write_images(
    pixels: np.ndarray, class_names: list[str], inputs: SampleInputs, directory: Path
) -> None:
    """Writes each image as a PNG, or an array, named after its file or its class."""
    directory.mkdir()
    for number, image in enumerate(pixels):
        name, source = f"{number:06d}", inputs.name(number)
        if source is not None:
            name += f"_{PurePosixPath(source).stem}"
        elif class_names:
            name += f"_{class_names[number]}"
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        if image.dtype == np.uint8:
            Image.fromarray(image).save(directory / f"{safe}.png")
        else:
            np.save(directory / f"{safe}.npy", image)
