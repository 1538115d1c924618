"""Images from a generator, written to disk."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from taming.errors import UserError
from taming.generation import ImageGenerator, sample_best
from taming.pictures import to_uint8
from taming.workflows.sample_inputs import SampleInputs, find_inputs
from taming.workflows.sample_pictures import (
    MAX_GRID_IMAGES,
    beside,
    sample_grid,
    sample_palette,
)
from taming.workflows.sample_rejection import check_rejection
from taming.workflows.sample_settings import SampleSettings

__all__ = ["SampleReport", "sample_images"]

log = logging.getLogger(__name__)

COMPILING = (
    "compile=true: the first batch waits until the step is compiled, 10 to 30 seconds or more, in "
    "which the progress bar stands still. The more images follow, the more that pays."
)


@dataclass
class SampleReport:
    """What came of it.

    Attributes:
        notes: what the images were made from and how they were chosen, a sentence each.
        written: files and folders.
    """

    notes: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


def sample_images(
    generator: ImageGenerator,
    settings: SampleSettings,
    output_dir: Path,
    classifier: Callable[[Tensor], Tensor] | None = None,
) -> SampleReport:
    """Samples, and writes into `output_dir`.

    `samples.npz` holds `arr_0`, uint8 `(n h w 3)`, and `arr_1`, int64 labels, where there are
    classes. `samples.png` shows the first images, with the class above each; left of each its
    condition and the image to complete, where there are such. Label maps are shown in colours. No
    more images than a batch are held as anything but bytes.

    Args:
        generator: on the device to use.
        settings: see there.
        output_dir: where to write.
        classifier: chooses among `settings.candidates` for each image, see `sample_best`; None: the
            first is taken.

    Raises:
        MissingPathError: if images that are given are not there.
        UserError: for settings the model cannot do, or if the files cannot be written.
    """
    if classifier is not None:
        check_rejection(generator, settings, classifier)
    elif settings.candidates not in (1, SampleSettings.candidates):
        raise UserError(
            f"rejection.candidates={settings.candidates}: of several candidates a classifier keeps "
            "one, and there is none: give rejection.classifier."
        )
    inputs = find_inputs(generator, settings)
    if classifier is not None and inputs.labels is None:
        raise UserError(
            "rejection.classifier chooses the candidate that looks most like the asked-for class, "
            "and none is asked for: say with `classes` which are."
        )
    if (output_dir / "images").exists():  # they would be taken for those of samples.npz
        raise UserError(f"{output_dir / 'images'} exists already: give another output_dir.")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    drawn = _draw(generator, settings, inputs, classifier)
    notes = settings.notes(generator.grid_size, inputs.keep_rows)
    report = SampleReport(inputs.notes() + notes)
    if drawn.probabilities:
        report.notes.append(
            f"of {settings.candidates} candidates for each image the one that the classifier finds "
            "most probable was kept: on average it gives it "
            f"{np.mean(drawn.probabilities):.0%} for its class."
        )
    try:
        report.written = _write(generator, settings, inputs, drawn, output_dir)
    except OSError as error:
        raise UserError(f"{output_dir} cannot be written: {error}.") from error
    return report


@dataclass
class _Drawn:
    """Samples as bytes.

    Attributes:
        samples: `(n H W 3)`, by batch.
        shown: the first images' pictures, for each batch `(b k H W 3)`: what an image was made
            from, and last the sample.
        probabilities: of each image's class, where a classifier chose.
    """

    samples: list[np.ndarray] = field(default_factory=list)
    shown: list[np.ndarray] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)


def _draw(
    generator: ImageGenerator,
    settings: SampleSettings,
    inputs: SampleInputs,
    classifier: Callable[[Tensor], Tensor] | None,
) -> _Drawn:
    """Batch after batch. The bar counts images; in a single batch, tokens or candidates."""
    drawn = _Drawn()
    single = inputs.num_images <= settings.batch_size
    # not the last batch's size: a compiled step is for batches of one size
    batch_size = min(settings.batch_size, inputs.num_images)
    options = replace(settings.sampling(), batch_size=batch_size)
    if settings.compile:
        log.info(COMPILING)
    with tqdm(total=inputs.num_images, unit="image", desc="sampling", disable=single) as bar:
        for start in range(0, inputs.num_images, settings.batch_size):
            count = min(settings.batch_size, inputs.num_images - start)
            numbers = range(start, start + count)
            condition = inputs.condition(numbers)
            given, given_tokens = None, None
            if inputs.complete is not None:
                given = inputs.complete.batch(numbers)
                given_tokens = generator.first_tokens(given, inputs.keep_rows)
            if classifier is None:
                images = generator.sample(
                    count,
                    condition,
                    given_tokens=given_tokens,
                    options=options,
                    progress=single,
                    first_image=start,
                )
            else:
                assert condition is not None
                best = sample_best(
                    generator,
                    classifier,
                    count,
                    condition,
                    settings.candidates,
                    given_tokens=given_tokens,
                    options=options,
                    progress=single,
                    first_image=start,
                )
                images = best.images
                drawn.probabilities += best.probabilities.tolist()
            drawn.samples.append(to_uint8(images, sample_palette(generator)))
            if start < MAX_GRID_IMAGES:
                drawn.shown.append(beside(generator, condition, given, drawn.samples[-1]))
            bar.update(count)
    return drawn


def _write(
    generator: ImageGenerator,
    settings: SampleSettings,
    inputs: SampleInputs,
    drawn: _Drawn,
    output_dir: Path,
) -> list[Path]:
    pixels = np.concatenate(drawn.samples)
    class_names = _class_names(generator, inputs)
    arrays = [pixels] + ([] if inputs.labels is None else [inputs.labels.numpy()])
    written = [output_dir / "samples.npz", output_dir / "samples.png"]
    np.savez_compressed(written[0], *arrays)
    shown = np.concatenate(drawn.shown)
    sample_grid(shown, class_names, _num_columns(generator, settings, inputs)).save(written[1])
    if settings.write_images:
        written.append(output_dir / "images")
        written[-1].mkdir(exist_ok=True)
        files = inputs.names()
        names = class_names if files is None else [PurePosixPath(name).stem for name in files]
        for number, image in enumerate(pixels):
            name = f"_{_file_name(names[number])}" if names else ""
            Image.fromarray(image).save(written[-1] / f"{number:06d}{name}.png")
    return written


def _class_names(generator: ImageGenerator, inputs: SampleInputs) -> list[str] | None:
    """Of each image."""
    if inputs.labels is None:
        return None
    labels = inputs.labels.tolist()
    names = generator.class_names or [str(c) for c in range(max(labels) + 1)]
    return [names[label] for label in labels]


def _num_columns(
    generator: ImageGenerator, settings: SampleSettings, inputs: SampleInputs
) -> int | None:
    """A column a class where that gives a readable grid."""
    if inputs.labels is None:
        return None
    count = generator.conditioning.num_classes
    if settings.chosen_classes is not None:
        count = len(settings.chosen_classes)
    return count if count is not None and 4 <= count <= 16 else None


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text)
