"""What `sample_images` can be told."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Self

from taming.errors import UserError
from taming.generation import Guidance, SamplingOptions, check_grid_size

__all__ = ["GivenImages", "ImagesToComplete", "SampleSettings"]


@dataclass(frozen=True)
class GivenImages:
    """Where images are that sampling is given.

    Attributes:
        path: a folder, a `.zip` file or a single image; None: there are none.
        subfolder: only the images below this folder of it; None for all.
        unlabelled, unlabelled_class: of label maps, see `taming.data.LabelMapReader`; "auto": as in
            the model's training. The classes are the model's.
    """

    path: str | Path | None = None
    subfolder: str | None = None
    unlabelled: int | Literal["auto"] | None = "auto"
    unlabelled_class: int | Literal["auto"] | None = "auto"

    def check(self, group: str) -> None:
        """Raises a `UserError` for values that have no meaning, by the name of the `group`."""
        for name in ("unlabelled", "unlabelled_class"):
            value = getattr(self, name)
            if value not in (None, "auto") and (
                isinstance(value, bool) or not isinstance(value, int)
            ):
                raise UserError(f"{group}.{name}={value}: give a whole number, null, or auto.")

    def read_as(self, unlabelled: int | None, unlabelled_class: int | None) -> Self:
        """With these in place of "auto"."""
        given = self
        if given.unlabelled == "auto":
            given = replace(given, unlabelled=unlabelled)
        if given.unlabelled_class == "auto":
            given = replace(given, unlabelled_class=unlabelled_class)
        return given

    def unused(self, group: str) -> str | None:
        """Of the settings of `group`, what has no meaning without `path` and is given."""
        if self.path is not None:
            return None
        for setting in fields(self):
            if getattr(self, setting.name) != setting.default:
                return f"{group}.{setting.name}"
        return None


@dataclass(frozen=True)
class ImagesToComplete(GivenImages):
    """Images of which the first rows are kept.

    Attributes:
        unlabelled, unlabelled_class: a tokenizer does not know how label maps were read, so that
            "auto" is 255 and None.
        keep_rows: rows of codes that are kept; None: half of them.
    """

    keep_rows: int | None = None


@dataclass(frozen=True)
class SampleSettings:
    """What to sample.

    Attributes:
        num_images: how many; None: as many as there are conditions or images to complete, of both
            the larger number, and 16 where there are neither.
        classes: labels or class names (or one of them) that the images take in turn; a number is
            always a label. "none" (unless a class has this name): no class is asked for. None: of
            images to complete the class whose name its folder has; where no folder has one, no
            class if the model can do without, else all in turn. Without such images all in turn.
        temperature, top_k, top_p, greedy, seed, guidance_scale, guidance_schedule, guidance_power,
            guidance_interval, stride, compile, batch_size: see `ImageGenerator.sample_tokens`.
        grid_size: (height, width) of larger images, in codes, one number for a square; None: as
            trained.
        conditions: images for the model to be asked for, taken in turn.
        complete: images to complete, taken in turn, in the same order; if any has the name of a
            condition, each must have that of its own.
        candidates: images drawn for each one that is kept, where a classifier chooses.
        write_images: also write each image as a PNG into `images/`.

    Raises:
        UserError: for values that have no meaning. What a model cannot do shows when it is asked.
    """

    num_images: int | None = None
    classes: Sequence[int | str] | int | str | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    seed: int = 0
    guidance_scale: float = 1.0
    guidance_schedule: str = "constant"
    guidance_power: float = 1.0
    guidance_interval: Sequence[float] = (0.0, 1.0)
    grid_size: int | Sequence[int] | None = None
    stride: int | None = None
    compile: bool = False
    conditions: GivenImages = field(default_factory=GivenImages)
    complete: ImagesToComplete = field(default_factory=ImagesToComplete)
    candidates: int = 10
    batch_size: int = 64
    write_images: bool = False

    def __post_init__(self) -> None:
        for name in ("num_images", "batch_size", "candidates"):
            value = getattr(self, name)
            if value is None and name == "num_images":
                continue
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value}: give a whole number, 1 or more.")
        _ = self.large_grid_size  # checks itself
        for group in ("conditions", "complete"):
            getattr(self, group).check(group)
            unused = getattr(self, group).unused(group)
            if unused is not None:
                raise UserError(f"{unused} is of images, and there are none: give {group}.path.")
        if self.stride is not None and not isinstance(self.stride, int):
            raise UserError(f"stride={self.stride}: give a whole number, or null.")
        self.sampling()  # checks itself

    @property
    def guidance(self) -> Guidance:
        """All that is said of it."""
        interval = self.guidance_interval
        return Guidance(self.guidance_scale, self.guidance_schedule, self.guidance_power, interval)

    def notes(self, trained: tuple[int, int], keep_rows: int = 0) -> list[str]:
        """What is given and has no effect, a sentence each.

        Args:
            trained: `grid_size` of the model.
            keep_rows: rows of codes that are given.
        """
        height, width = self.large_grid_size or trained
        notes = self.guidance.notes(height * width, keep_rows * width)
        given = [
            name
            for name in ("temperature", "top_k", "top_p", "seed")
            if getattr(self, name) != getattr(SampleSettings, name)
        ]
        if self.greedy and given:
            why = "greedy=true takes the most probable token each time"
            notes.append(f"no effect of {' and '.join(given)}: {why}.")
        if self.stride is not None and (height, width) == trained:
            notes.append("no effect of stride: it is of the window of a larger grid_size.")
        return notes

    @property
    def chosen_classes(self) -> list[int | str] | None:
        """`classes` as a list."""
        if isinstance(self.classes, str) or not isinstance(self.classes, Sequence):
            return None if self.classes is None else [self.classes]
        return list(self.classes)

    @property
    def large_grid_size(self) -> tuple[int, int] | None:
        """`grid_size` as (height, width)."""
        return None if self.grid_size is None else check_grid_size(self.grid_size)

    def sampling(self) -> SamplingOptions:
        """How to sample."""
        return SamplingOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            guidance=self.guidance,
            greedy=self.greedy,
            seed=self.seed,
            grid_size=self.large_grid_size,
            stride=self.stride,
            compile=self.compile,
            batch_size=self.batch_size,
        )
