"""What the commands need to know about a setting, apart from its type: one table."""

from enum import Enum, auto
from fnmatch import fnmatch

__all__ = ["TABLE", "Trait", "has_trait"]


class Trait(Enum):
    """What is special about a setting."""

    INPUT = auto()
    OUTPUT = auto()
    PLACE = auto()
    FILE_NAME = auto()
    FIXED = auto()
    CHOSEN_ONCE = auto()
    OF_ONE_COMMAND = auto()


TABLE = {
    # a path that must exist
    Trait.INPUT: ("checkpoint", "classifier", "complete.path", "condition_tokenizer",
        "conditions.path", "data.path", "data.val_path", "finetune.checkpoint", "frechet.weights",
        "input", "perceptual.weights", "reference", "rejection.classifier", "runs", "vqgan"),
    # the directory that a command writes into
    Trait.OUTPUT: ("resume", "run_dir", "output_dir"),
    # a directory that a part of a run writes into
    Trait.PLACE: ("*.default_root_dir", "*.dir", "*.dirpath", "*.output_dir", "*.root_dir",
        "*.save_dir"),
    # part of the name of a file or directory in such a directory
    Trait.FILE_NAME: ("*.filename*", "*.name", "*.sub_dir", "*.version"),
    # A resumed run keeps it, because it belongs to the model or decides which images train it.
    # A name may be a pattern; one with ~ is an override that deletes a setting.
    Trait.FIXED: ("~*", "adversary", "adversary.discriminator*", "callbacks.average.decay",
        "condition_*", "conditioning", "data", "data.channels", "data.resolution", "data.source",
        "data.source.group", "data.source.labels", "data.source.num_val_images",
        "data.source.shuffle_buffer", "data.source.split", "data.source.val_split",
        "data.test_fraction", "data.val_fraction", "experiment", "finetune*", "model*",
        "perceptual*", "quantizer*", "recipe", "run_dir", "seed", "size*", "vqgan"),
    # `auto` or null lets the first training choose, and a resumed run keeps the choice
    Trait.CHOSEN_ONCE: ("data.channels", "data.resolution", "trainer.precision",
        "training.channels_last", "training.compile"),
    # The next command has its own value, so the suggested command line leaves it out.
    Trait.OF_ONE_COMMAND: ("data.batch_size", "data.channels", "data.loader.*", "data.resolution"),
}  # fmt: skip


def has_trait(name: str, trait: Trait) -> bool:
    """Returns whether a setting has a trait, by its name or a pattern that matches it."""
    return any(fnmatch(name, pattern) for pattern in TABLE[trait])
