"""Checks that model, data and classifier match."""

from taming.conditioning import ImageCondition, class_difference
from taming.data import LabelMapReader
from taming.data.module import ImageDataModule
from taming.errors import UserError
from taming.evaluation import ImageClassifier
from taming.generation import ImageGenerator
from taming.vqgan import VQGAN

__all__ = ["check_classifier", "check_data"]


def check_data(model: ImageGenerator | VQGAN, data: ImageDataModule) -> VQGAN:
    """Returns the model's tokenizer; refuses data that do not suit the model."""
    tokenizer = model if isinstance(model, VQGAN) else model.require_tokenizer()
    tokenizer.check_kind(data.label_maps, data.channels)
    if isinstance(model, VQGAN):
        return tokenizer
    if data.resolution != model.resolution:
        height, width = model.resolution
        raise UserError(
            f"the images are {data.resolution[0]}×{data.resolution[1]}, and the generator's "
            f"{height}×{width}: give data.resolution=[{height},{width}], or leave it out."
        )
    difference = None
    if isinstance(model.conditioning, ImageCondition):
        difference = _condition_difference(model, model.conditioning, data)
    elif model.conditioning.num_classes is not None:
        difference = class_difference(data, model.conditioning)
    if difference is not None:
        raise UserError(f"the data are not like those of the generator's training: {difference}.")
    return tokenizer


def _condition_difference(
    generator: ImageGenerator, conditioning: ImageCondition, data: ImageDataModule
) -> str | None:
    """Says how the data's conditions differ from those of the generator's training, if they do."""
    reader, tokenizer = data.condition_reader, generator.require_condition_tokenizer()
    if reader is None:
        return "they have no condition images: use data=paired"
    tokenizer.check_kind(reader.label_maps, reader.channels)
    if not reader.label_maps:
        return None
    reading = conditioning.unlabelled, conditioning.unlabelled_class
    if repr(reader) == repr(LabelMapReader(tokenizer.image_channels, *reading)):  # no palette
        return None
    value, its_class = ("null" if number is None else str(number) for number in reading)
    return (
        f"their label maps would be read in another way: set data.label_map.unlabelled={value} "
        f"data.label_map.unlabelled_class={its_class}"
    )


def check_classifier(classifier: ImageClassifier, data: ImageDataModule) -> None:
    """Refuses a classifier whose classes or channels are not the data's."""
    difference = class_difference(classifier, data)
    if classifier.image_channels != data.channels:
        difference = f"it takes images of {classifier.image_channels} channels"
    if difference is not None:
        raise UserError(
            f"the classifier does not fit the data: {difference}; classifier=null trains another."
        )
