"""What the commands need to know about a setting, apart from its type: one table."""

from enum import Flag, auto
from fnmatch import fnmatch

__all__ = ["TRAITS", "Trait", "has_trait", "names_with"]


class Trait(Flag):
    """What is special about a setting."""

    INPUT = auto()
    """A path that must exist."""
    OUTPUT = auto()
    """The directory that a command writes into."""
    FIXED = auto()
    """A resumed run keeps it: it belongs to the model, or says which images train it."""
    CHOSEN_ONCE = auto()
    """`auto` or null lets the first training choose, and a resumed run keeps the choice."""
    OF_ONE_COMMAND = auto()
    """The next command has its own value, so the suggested command line leaves it out."""


INPUT, OUTPUT, FIXED = Trait.INPUT, Trait.OUTPUT, Trait.FIXED
CHOSEN_ONCE, OF_ONE_COMMAND = Trait.CHOSEN_ONCE, Trait.OF_ONE_COMMAND

TRAITS = {  # a name may be a pattern; FIXED patterns starting with ~ are deletions
    "~*": FIXED,
    "adversary": FIXED,
    "adversary.discriminator*": FIXED,
    "callbacks.average.decay": FIXED,
    "checkpoint": INPUT,
    "classifier": INPUT,
    "complete.path": INPUT,
    "condition_*": FIXED,
    "condition_tokenizer": INPUT | FIXED,
    "conditioning": FIXED,
    "conditions.path": INPUT,
    "data": FIXED,
    "data.batch_size": OF_ONE_COMMAND,
    "data.channels": FIXED | CHOSEN_ONCE | OF_ONE_COMMAND,
    "data.loader.*": OF_ONE_COMMAND,
    "data.path": INPUT,
    "data.resolution": FIXED | CHOSEN_ONCE | OF_ONE_COMMAND,
    "data.source": FIXED,
    "data.source.labels": FIXED,
    "data.source.num_val_images": FIXED,
    "data.source.shuffle_buffer": FIXED,
    "data.source.split": FIXED,
    "data.source.val_split": FIXED,
    "data.val_fraction": FIXED,
    "data.val_path": INPUT,
    "experiment": FIXED,
    "finetune*": FIXED,
    "finetune.checkpoint": INPUT | FIXED,
    "frechet.weights": INPUT,
    "input": INPUT,
    "model*": FIXED,
    "output_dir": OUTPUT,
    "perceptual*": FIXED,
    "perceptual.weights": INPUT | FIXED,
    "quantizer*": FIXED,
    "recipe": FIXED,
    "rejection.classifier": INPUT,
    "resume": OUTPUT,
    "run_dir": OUTPUT | FIXED,
    "runs": INPUT,
    "seed": FIXED,
    "size*": FIXED,
    "trainer.precision": CHOSEN_ONCE,
    "training.channels_last": CHOSEN_ONCE,
    "training.compile": CHOSEN_ONCE,
    "vqgan": INPUT | FIXED,
}


def has_trait(name: str, trait: Trait) -> bool:
    """Returns whether a setting has a trait, by its name or a pattern that matches it."""
    return any(trait in traits and fnmatch(name, pattern) for pattern, traits in TRAITS.items())


def names_with(trait: Trait) -> list[str]:
    """Returns the names in the table that have a trait."""
    return [name for name, traits in TRAITS.items() if trait in traits]
