"""The two training stages on Lightning."""

from taming.training.adversary import Adversary
from taming.training.averaging import WarmEMA, average_weights
from taming.training.checkpoints import (
    IntervalCheckpoint,
    LastCheckpoint,
    SavingShare,
    WholeFileCheckpointIO,
)
from taming.training.finetuning import finetuned_adversary, finetuned_vqgan
from taming.training.grids import ReconstructionGrids, SampleGrids
from taming.training.health import HealthWatch, OverfittingWatch
from taming.training.metrics_file import MetricsFile
from taming.training.module import TrainingModule
from taming.training.optimizer import OptimizerConfig
from taming.training.orders import Annealing, TrainingOrder, model_order
from taming.training.progress import StepProgress
from taming.training.run import TrainingResult, check_links, check_resume, finished_steps, train
from taming.training.stopping import Clock, EndAfterStep
from taming.training.strategies import data_parallel
from taming.training.tracking import wandb_logger
from taming.training.transformer import TransformerTraining, build_conditioning
from taming.training.vqgan import VQGANTraining

__all__ = [
    "Adversary", "Annealing", "Clock", "EndAfterStep", "HealthWatch", "IntervalCheckpoint",
    "LastCheckpoint", "MetricsFile", "OptimizerConfig", "OverfittingWatch", "ReconstructionGrids",
    "SampleGrids", "SavingShare", "StepProgress", "TrainingModule", "TrainingOrder",
    "TrainingResult", "TransformerTraining", "VQGANTraining",
    "WarmEMA", "WholeFileCheckpointIO", "average_weights", "build_conditioning",
    "check_links", "check_resume", "data_parallel", "finetuned_adversary", "finetuned_vqgan",
    "finished_steps", "model_order", "train", "wandb_logger",
]  # fmt: skip
