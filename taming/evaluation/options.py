"""The options of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from taming.evaluation.classifier import ClassifierTraining
from taming.generation import SamplingDtype, SamplingOptions

__all__ = ["EvaluationOptions", "HeldOutPart"]

HeldOutPart = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How many images an evaluation measures, and how it draws samples.

    Args:
        sampling: sampling options. Their seed also chooses images, and their batch size also holds
            for the judges.
        classifier_training: settings of each classifier that is trained.
        num_samples: samples per guidance scale. Classes are requested as often as they occur among
            the training images.
        guidance_scales: one set of samples each.
        part: the held-out images to measure; `auto` for the test images if the data set some aside.
        max_images: maximum number of held-out images; None for all.
        max_training_images: maximum number of training images to search for copies; None for all.
        near_duplicates: what to do with held-out images that are near-duplicates of training
            images: count them, leave them out, or ignore them, which saves reading all training
            images once.
        dtype: the generator is converted to it after its likelihood is measured.
        cache_dir: where features are kept for the next evaluation with the same images and network.
    """

    sampling: SamplingOptions
    classifier_training: ClassifierTraining
    num_samples: Annotated[int, Ge(2)] = 1000
    guidance_scales: Sequence[Annotated[float, Ge(0)]] = (1.0,)
    part: HeldOutPart | Literal["auto"] = "auto"
    max_images: Annotated[int, Ge(2)] | None = None
    max_training_images: Annotated[int, Ge(2)] | None = 10000
    near_duplicates: Literal["count", "leave_out", "ignore"] = "count"
    dtype: SamplingDtype = "float32"
    cache_dir: str | Path | None = None
