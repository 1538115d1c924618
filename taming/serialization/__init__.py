"""Model directories, training checkpoints and hub names. Knows no model."""

from taming.serialization.foreign import read_foreign_checkpoint
from taming.serialization.hub import upload
from taming.serialization.pretrained import (
    PretrainedModel,
    find_model,
    load_saved_model,
    rebuilding,
)
from taming.serialization.saved_model import (
    DamagedCheckpointError,
    SavedModel,
    checkpoint_entry,
    is_only_a_model,
    load_model_directory,
    load_training_checkpoint,
    read_training_checkpoint,
    replace_model,
    save_model_directory,
    saved_checkpoints,
)
from taming.serialization.sharded import (
    is_checkpoint,
    load_sharded_checkpoint,
    save_sharded_checkpoint,
)

__all__ = ["DamagedCheckpointError", "PretrainedModel", "SavedModel",
    "checkpoint_entry", "find_model", "is_checkpoint", "is_only_a_model", "load_model_directory",
    "load_saved_model", "load_sharded_checkpoint", "load_training_checkpoint",
    "read_foreign_checkpoint", "read_training_checkpoint", "rebuilding", "replace_model",
    "save_model_directory", "save_sharded_checkpoint", "saved_checkpoints", "upload"]  # fmt: skip
