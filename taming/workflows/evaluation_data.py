"""Whether model, data and classifier of an evaluation fit each other."""

from collections.abc import Sequence

from taming.conditioning import ImageCondition
from taming.data import LabelMapReader
from taming.data.module import ImageDataModule
from taming.errors import UserError
from taming.evaluation import ImageClassifier, ReconstructionMetrics, class_difference
from taming.generation import ImageGenerator
from taming.vqgan import VQGAN

__all__ = ["check_classifier", "check_data", "check_pictures"]


def check_pictures(tokenizer: VQGAN) -> None:
    """Refuses tokenizers of label maps."""
    if tokenizer.label_maps:
        raise UserError("the model's images are label maps, and evaluate measures pictures only.")


def check_data(model: ImageGenerator | VQGAN, data: ImageDataModule) -> VQGAN:
    """Returns the model's tokenizer; refuses data that do not suit the model."""
    tokenizer = model if isinstance(model, VQGAN) else model.require_tokenizer()
    check_pictures(tokenizer)
    if data.of_label_maps or data.channels != tokenizer.image_channels:
        kind = "label maps" if data.of_label_maps else f"images of {data.channels} channels"
        raise UserError(
            f"the data are {kind}, and the model was trained on pictures of "
            f"{tokenizer.image_channels} channels: give other data, or leave data.channels out."
        )
    height, width = data.resolution
    least = ReconstructionMetrics.MIN_SIDE
    if min(height, width) < least:
        raise UserError(f"images of {height}×{width} are too small: SSIM needs {least}×{least}.")
    tokenizer.grid_size_for((height, width))  # whether it divides
    if isinstance(model, VQGAN):
        return tokenizer
    if (height, width) != model.resolution:
        rows, columns = model.resolution
        raise UserError(
            f"the images are {height}×{width}, and the generator's {rows}×{columns}: give "
            f"data.resolution=[{rows},{columns}], or leave it out."
        )
    conditioning, difference = model.conditioning, None
    if conditioning.takes_images:
        difference = _condition_difference(model, data)
    elif conditioning.num_classes not in (None, data.num_classes):
        own = data.num_classes or "no"
        difference = f"the images have {own} classes, and the generator {conditioning.num_classes}"
    elif conditioning.class_names is not None:
        names = data.class_names, conditioning.class_names
        difference = class_difference("the images'", names[0], "the generator's", names[1])
    if difference is not None:
        raise UserError(f"{difference}: give the data it was trained on.")
    return tokenizer


def _condition_difference(generator: ImageGenerator, data: ImageDataModule) -> str | None:
    """Says how the data's conditions differ from those of the generator's training, if they do."""
    if "conditions" not in data.val_dataset[0]:
        return (
            "the generator makes images from condition images, and the data have none: use "
            "data=paired"
        )
    conditioning, tokenizer = generator.conditioning, generator.condition_tokenizer
    reader = data.condition_reader
    if reader is None or tokenizer is None or not isinstance(conditioning, ImageCondition):
        return None
    if tokenizer.label_maps != reader.label_maps:
        kinds = {False: "pictures (data.condition=image)", True: "label maps"}
        return (
            f"the conditions of the data are {kinds[reader.label_maps]}, and the generator was "
            f"trained with {kinds[tokenizer.label_maps]}"
        )
    if not isinstance(reader, LabelMapReader):
        return None
    readings = [  # which pixel value becomes which class
        (x.unlabelled, reader.channels - 1 if x.unlabelled_class is None else x.unlabelled_class)
        for x in (conditioning, reader)
    ]
    if readings[0] != readings[1] and {readings[0][0], readings[1][0]} != {None}:
        trained = conditioning.unlabelled, conditioning.unlabelled_class
        unlabelled, its_class = ("null" if value is None else value for value in trained)
        return (
            "the label maps would be read in another way than in the generator's training: set "
            f"data.label_map.unlabelled={unlabelled} data.label_map.unlabelled_class={its_class}"
        )
    return None


def check_classifier(classifier: ImageClassifier, data: ImageDataModule) -> None:
    """Refuses a classifier of other classes or channels than the data's."""
    names: Sequence[object] = classifier.class_names or data.class_names
    if len(names) != classifier.num_classes:
        names = range(classifier.num_classes)
    difference = class_difference("the classifier's", names, "the data's", data.class_names)
    if classifier.image_channels != data.channels:
        difference = f"the classifier takes {classifier.image_channels} channels of images"
    if difference is not None:
        raise UserError(f"{difference}: classifier=null trains another.")
