"""What can be wrong with an evaluation, found before anything takes time."""

import torch

from taming.conditioning import ImageCondition
from taming.data import ImageDataModule, LabelMapReader, Reader
from taming.errors import UserError
from taming.evaluation import ImageClassifier, ReconstructionMetrics
from taming.generation import ImageGenerator
from taming.vqgan import VQGAN
from taming.workflows.class_names import class_difference, count_difference
from taming.workflows.evaluation_settings import EvaluationSettings

__all__ = ["check_classifier", "check_data", "check_pictures", "check_sampling"]


def check_pictures(tokenizer: VQGAN) -> None:
    """Raises a `UserError` if the tokenizer is of label maps."""
    if tokenizer.label_maps:
        raise UserError("the model's images are label maps, and evaluate measures pictures only.")


def check_data(model: ImageGenerator | VQGAN, data: ImageDataModule) -> VQGAN:
    """The model's tokenizer.

    Raises:
        UserError: if the model has none, or the data are not what it was trained for.
    """
    tokenizer = model if isinstance(model, VQGAN) else model.require_tokenizer()
    check_pictures(tokenizer)
    if data.of_label_maps:
        raise UserError(
            "the data are label maps, and the model was trained on pictures: give other data "
            "(data=label_maps are label maps; all others are pictures)."
        )
    if data.channels != tokenizer.image_channels:
        raise UserError(
            f"data.channels={data.channels}, but the model was trained on images of "
            f"{tokenizer.image_channels}."
        )
    if min(data.resolution) < ReconstructionMetrics.MIN_SIDE:
        raise UserError(
            f"images of {data.resolution[0]}×{data.resolution[1]} are too small: SSIM needs "
            f"{ReconstructionMetrics.MIN_SIDE} pixels or more a side."
        )
    grid_size = tokenizer.grid_size_for(data.resolution)
    if isinstance(model, ImageGenerator):
        _check_generator(model, data, grid_size)
    return tokenizer


def _check_generator(
    generator: ImageGenerator, data: ImageDataModule, grid_size: tuple[int, int]
) -> None:
    if grid_size != generator.grid_size:
        height, width = generator.resolution
        raise UserError(
            f"images of {data.resolution[0]}×{data.resolution[1]} are {grid_size[0]}×"
            f"{grid_size[1]} codes, and the generator's grid is {generator.grid_size[0]}×"
            f"{generator.grid_size[1]}: give data.resolution=[{height},{width}], or leave it out."
        )
    conditioning = generator.conditioning
    if conditioning.takes_images and "conditions" not in data.val_dataset[0]:
        raise UserError(
            "the generator makes images from condition images, and the data have none: give "
            "data=paired and the pairs it was trained on."
        )
    if data.condition_reader is not None and isinstance(conditioning, ImageCondition):
        _check_conditions(generator, conditioning, data.condition_reader)
    if conditioning.num_classes is None:
        return
    if data.num_classes != conditioning.num_classes:
        raise UserError(
            f"the images have {data.num_classes or 'no'} classes, and the generator "
            f"{conditioning.num_classes}: give the data it was trained on."
        )
    names = conditioning.class_names
    if names is not None:
        difference = class_difference("the images'", data.class_names, "the generator's", names)
        if difference is not None:
            raise UserError(f"{difference}: give the data it was trained on.")


def _check_conditions(
    generator: ImageGenerator, conditioning: ImageCondition, reader: Reader
) -> None:
    """The conditions must be of the model's kind, and label maps be read as in its training."""
    tokenizer, are_maps = generator.condition_tokenizer, reader.label_maps
    if tokenizer is None:
        return
    if tokenizer.label_maps != are_maps:
        kinds = {False: "pictures (data.condition=image)", True: "label maps"}
        raise UserError(
            f"the conditions of the data are {kinds[are_maps]}, and the generator was trained with "
            f"{kinds[not are_maps]}: give the pairs it was trained on."
        )
    last = reader.channels - 1
    if isinstance(reader, LabelMapReader) and _reading(conditioning, last) != _reading(
        reader, last
    ):
        trained = conditioning.unlabelled, conditioning.unlabelled_class
        unlabelled, its_class = ("null" if value is None else value for value in trained)
        raise UserError(
            "the label maps would be read in another way than in the generator's training: give "
            f"data.label_map.unlabelled={unlabelled} data.label_map.unlabelled_class={its_class}."
        )


def _reading(source: ImageCondition | LabelMapReader, last: int) -> tuple[int, int] | None:
    """Which pixel value becomes which class, if one does."""
    if source.unlabelled is None:
        return None
    return source.unlabelled, last if source.unlabelled_class is None else source.unlabelled_class


def check_classifier(classifier: ImageClassifier, data: ImageDataModule) -> None:
    """Raises a `UserError` if the classifier is not of the data's classes and channels."""
    if classifier.image_channels != data.channels:
        raise UserError(
            f"the classifier takes images of {classifier.image_channels} channels, and the data's "
            f"have {data.channels}: classifier=null trains another."
        )
    if data.num_classes is None:
        raise UserError("classifier= is of classes, and the data have no classes: leave it out.")
    sides = "the classifier's", "the data's"
    names = classifier.class_names
    if names is None:
        counts = classifier.num_classes, data.num_classes
        difference = count_difference(sides[0], counts[0], sides[1], counts[1])
    else:
        difference = class_difference(sides[0], names, sides[1], data.class_names)
    if difference is not None:
        raise UserError(f"{difference}: classifier=null trains another.")


def check_sampling(
    generator: ImageGenerator, data: ImageDataModule, settings: EvaluationSettings
) -> None:
    """Draws an image with each guidance scale, so that what cannot be done is said now."""
    condition = None
    if generator.conditioning.takes_images:
        condition = data.val_dataset[0]["conditions"][None]
    elif generator.conditioning.num_classes is not None:
        condition = torch.zeros(1, dtype=torch.int64)
    for scale in settings.guidance_scales:
        generator.sample(1, condition, options=settings.sampling(scale))
