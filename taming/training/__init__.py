"""The two training stages on Lightning."""

from taming.training.adversary import Adversary
from taming.training.callbacks import peak_memory
from taming.training.finetuning import (
    FINETUNING_MODES,
    finetuned_adversary,
    finetuned_vqgan,
    unused_settings,
)
from taming.training.health import HealthWatch, unusual_data
from taming.training.optimizer import OptimizerConfig
from taming.training.run import TrainerConfig, TrainingResult, check_resume, train
from taming.training.trackers import CSVTracker, Tracker, WandbTracker
from taming.training.transformer import TransformerTraining
from taming.training.vqgan import VQGANTraining

__all__ = [
    "FINETUNING_MODES",
    "Adversary",
    "CSVTracker",
    "HealthWatch",
    "OptimizerConfig",
    "Tracker",
    "TrainerConfig",
    "TrainingResult",
    "TransformerTraining",
    "VQGANTraining",
    "WandbTracker",
    "check_resume",
    "finetuned_adversary",
    "finetuned_vqgan",
    "peak_memory",
    "train",
    "unused_settings",
    "unusual_data",
]
