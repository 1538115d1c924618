"""What a report is made from: a run's model, and some images of its data."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils.data import default_collate

from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation import in_proportion
from taming.generation import load_model
from taming.report.subject import Images, Subject, evenly
from taming.runtime.errors import UserError
from taming.serialization import find_model

__all__ = ["OpenData", "load_subject"]

log = logging.getLogger("taming")

OpenData = Callable[[Path], ImageDataModule]

NUM_SHOWN, NUM_HELD_OUT, NUM_TRAIN = 24, 256, 1000  # images
MAX_NUMBERS = 10**8  # in each of them together: 400 MB


def load_subject(
    run: Path, open_data: OpenData | None, device: torch.device | str
) -> tuple[Subject, dict[str, str], list[str]]:
    """Loads a run's model and images, as far as they are there.

    Returns:
        The subject; what is known of model and data, by title; and what is missing, in sentences.

    Raises:
        UserError: if the run has no model yet.
    """
    tokenizer, generator = load_model(run)
    model = generator or tokenizer
    model.to(device)
    size = sum(parameter.numel() for parameter in model.parameters())
    place = find_model(run)
    kind = "2, generator" if generator else "1, VQGAN"
    facts = {"stage": kind, "parameters": f"{size:,}", "codes": f"{tokenizer.codebook_size:,}"}
    if place.is_file():  # the run goes on
        facts["model"] = str(place.relative_to(run))
    missing: list[str] = []
    images: dict[str, Images] = {}
    data: ImageDataModule | None = None
    try:
        if open_data is not None:
            data = open_data(run)
            if not isinstance(data, ImageDataModule):
                raise UserError("their data module is none of this program's.")
            images = few_images(data.val_dataset, data.train_dataset)
            facts["images"] = data.summary()
    except UserError as error:
        data = None
        missing.append(f"There are no pictures of images, for the data are not to be had: {error}")
    names = None if generator is None else generator.class_names  # which it knows without its data
    subject = Subject(
        tokenizer,
        generator,
        **images,
        class_names=(names if data is None else data.class_names) or (),
        colors=None if data is None else data.palette,
    )
    return subject, facts, missing


def few_images(held_out: ImageDataset, train: ImageDataset) -> dict[str, Images]:
    """Takes some images of the data, the same at each call."""
    first = held_out[0]
    size = sum(first[name].numel() for name in ("images", "conditions") if name in first)
    most = max(1, MAX_NUMBERS // size)
    labels = [held_out.label(number) for number in range(len(held_out))]
    pool = in_proportion(labels, min(NUM_HELD_OUT, most, len(held_out)), seed=0)
    return {
        "shown": _load(held_out, by_class(labels, min(NUM_SHOWN, most))),
        "held_out": _load(held_out, pool),
        "train": _load(train, evenly(train.block or len(train), min(NUM_TRAIN, most))),
    }


def by_class(labels: Sequence[int | None], most: int) -> list[int]:
    """Chooses at most so many images, equally many of each class; of some classes, if need be."""
    found = defaultdict(list)
    for number, label in enumerate(labels):
        found[-1 if label is None else label].append(number)
    classes = sorted(found)
    classes = [classes[i] for i in evenly(len(classes), most)]
    each = most // len(classes)
    return [found[c][i] for c in classes for i in evenly(len(found[c]), each)]


def _load(dataset: ImageDataset, numbers: Sequence[int]) -> Images:
    return Images(**default_collate([dataset[number] for number in numbers]))
