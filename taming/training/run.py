"""One training run: its directory, its Lightning trainer, and how it ends."""

import json
import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from taming.data import EndlessDataModule
from taming.errors import MissingPathError, UserError
from taming.serialization import (
    load_training_checkpoint,
    read_training_checkpoint,
    save_model_directory,
)
from taming.training.callbacks import (
    Checkpoints,
    Progress,
    StopTraining,
    TrainingInterrupted,
    parse_duration,
)
from taming.training.checkpoint_io import WholeFileCheckpointIO
from taming.training.module import TrainingModule
from taming.training.trackers import Tracker

__all__ = ["TrainerConfig", "TrainingResult", "check_resume", "train"]


@dataclass(frozen=True)
class TrainerConfig:
    """How long, on what, and how often to look.

    Attributes:
        max_steps: steps of the whole training, resumed parts included.
        max_time: `"1h30m"`, `"45m"` or `"90s"` for this session; None: no limit.
        accelerator: `"auto"` (a GPU if there is one, else the CPU), `"gpu"` or `"cpu"`.
        devices, strategy: as Lightning takes them.
        precision: `"auto"` (bf16 autocast on GPUs that have it, else float32), `"32-true"` or
            `"bf16-mixed"`.
        accumulate: batches per step.
        gradient_clip: largest gradient norm; None: no clipping.
        val_every: steps between validations; None: a single one, at `max_steps`.
        log_every: steps between reports of training losses.
        save_every: steps between checkpoints, besides the one at each validation; None: none.
        monitor: the validation number the best checkpoint is chosen by.
        mode: whether small (`"min"`) or large (`"max"`) is good; `"auto"`: as the number has it.
        export: which checkpoint becomes `model/`: `"best"` or `"last"`.
    """

    max_steps: int
    val_every: int | None
    monitor: str
    export: str
    mode: str = "auto"
    max_time: str | None = None
    accelerator: str = "auto"
    devices: Any = "auto"
    strategy: str = "auto"
    precision: str = "auto"
    accumulate: int = 1
    gradient_clip: float | None = 1.0
    log_every: int = 50
    save_every: int | None = None

    def __post_init__(self) -> None:
        if self.export not in ("best", "last"):
            raise UserError(f"trainer.export is 'best' or 'last', not {self.export!r}.")
        if self.mode not in ("auto", "min", "max"):
            raise UserError(f"trainer.mode is auto, min or max, not {self.mode!r}.")
        if self.precision not in ("auto", "32-true", "bf16-mixed"):
            raise UserError(
                f"trainer.precision is auto, 32-true or bf16-mixed, not {self.precision!r}."
            )
        for name in ("max_steps", "val_every", "save_every", "log_every", "accumulate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"trainer.{name} must be at least 1, not {value}.")
        if self.accelerator not in ("auto", "gpu", "cpu"):
            raise UserError(f"trainer.accelerator is auto, gpu or cpu, not {self.accelerator!r}.")
        if self.max_time is not None:
            parse_duration(self.max_time)

    def check_monitor(self, module: TrainingModule) -> None:
        """Raises a `UserError` if `monitor` is nothing that the module's validation reports."""
        if self.monitor not in module.val_modes:
            raise UserError(
                f"trainer.monitor names {self.monitor!r}, which validation does not report; it "
                f"reports {', '.join(module.val_modes)}."
            )

    def device_kind(self) -> str:
        """`"cuda"` or `"cpu"`: where this machine would train.

        Raises:
            UserError: if a GPU is asked for and PyTorch sees none.
        """
        has_gpu = torch.cuda.is_available()
        if self.accelerator == "gpu" and not has_gpu:
            raise UserError(
                "trainer.accelerator=gpu, but PyTorch sees no CUDA GPU here. Check nvidia-smi and "
                "that PyTorch is a CUDA build, or use trainer=cpu."
            )
        return "cuda" if has_gpu and self.accelerator != "cpu" else "cpu"

    def lightning_trainer(self, **settings: Any) -> L.Trainer:
        """Lightning's trainer on these devices, with more settings of it.

        Raises:
            UserError: for devices or a strategy that it refuses.
        """
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        accelerator = self.device_kind()
        try:
            return L.Trainer(
                accelerator=accelerator,
                devices=self.devices,
                strategy=_strategy(self),
                precision=_precision(self),
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                **settings,
            )
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(
                f"trainer.devices={self.devices} and trainer.strategy={self.strategy} do not work "
                f"on {accelerator}: {' '.join(str(error).split())}"
            ) from error


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        step: finished steps.
        interrupted: whether it was asked to end before `max_steps` and `max_time`.
        exported_step: the step of the model in `model/`.
        metrics: the numbers of that model's validation, or of the latest one before it.
    """

    step: int
    interrupted: bool
    exported_step: int
    metrics: dict[str, float]


def check_resume(run_dir: Path, max_steps: int, kind: str) -> Path:
    """The checkpoint to resume the run in `run_dir` from, which must be of this kind of model.

    Raises:
        MissingPathError: if there is no run or no checkpoint.
        UserError: if the checkpoint is damaged or another stage's, or the run has done `max_steps`.
    """
    path = run_dir / "checkpoints" / "last.ckpt"
    if not path.is_file():
        raise MissingPathError(
            f"nothing to resume: {path} does not exist. Give the directory of a run that has saved "
            "a checkpoint."
        )
    load_training_checkpoint(path).require(kind)
    step = read_training_checkpoint(path)["step"]
    if step >= max_steps:
        raise UserError(
            f"the run in {run_dir} has done {step} steps, and trainer.max_steps is {max_steps}; to "
            f"train on, give a larger number, such as trainer.max_steps={2 * step}."
        )
    return path


def train(
    module: TrainingModule,
    data: EndlessDataModule,
    config: TrainerConfig,
    *,
    run_dir: Path,
    trackers: list[Tracker],
    resume_from: Path | None,
    show: tuple[str, ...],
    on_start: Callable[[], object] = lambda: None,
) -> TrainingResult:
    """Trains, checkpoints into `run_dir/checkpoints`, and exports into `run_dir/model`.

    `run_dir/result.json` says how it ended.

    Args:
        module: stage 1 or stage 2.
        data: what to train on.
        config: how.
        run_dir: the run's directory, which exists.
        trackers: where numbers and pictures go.
        resume_from: checkpoint of the same run to go on from.
        show: numbers the progress bar shows.
        on_start: called in the first process when the first step is next, all that a checkpoint
            holds being restored.

    Raises:
        UserError: if validation does not report `config.monitor`, or the last checkpoint or the
            model cannot be written.
    """
    config.check_monitor(module)
    module.run_dir = run_dir
    module.log_every = config.log_every
    val_every = config.val_every or config.max_steps
    checkpoints = Checkpoints(
        run_dir / "checkpoints",
        monitor=config.monitor,
        mode=module.val_modes[config.monitor] if config.mode == "auto" else config.mode,
        val_every=val_every,
        save_every=config.save_every,
    )

    def start(trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:  # of a run that goes on: outdated, and in its checkpoint
            shutil.rmtree(run_dir / "model", ignore_errors=True)
            (run_dir / "result.json").unlink(missing_ok=True)
            on_start()

    begin = LambdaCallback(on_train_epoch_start=start)  # the module restores until then
    max_time = parse_duration(config.max_time) if config.max_time is not None else None
    trainer = config.lightning_trainer(
        max_epochs=-1,
        val_check_interval=val_every * config.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[WholeFileCheckpointIO()],
        callbacks=[Progress(show), checkpoints, StopTraining(max_time), begin],
    )
    module.trackers = trackers if trainer.is_global_zero else []
    if config.device_kind() == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    interrupted = False
    try:
        with warnings.catch_warnings():
            # Lightning's advice on data loaders and on its own loops does not apply here
            warnings.filterwarnings("ignore", module=r"lightning\.pytorch\..*")
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=None if resume_from is None else str(resume_from),
                weights_only=True,
            )
    except TrainingInterrupted:
        interrupted = True
    finally:
        for tracker in module.trackers:
            tracker.finish()
    best_step = checkpoints.best_step if config.export == "best" else None
    result = TrainingResult(
        step=module.step,
        interrupted=interrupted,
        exported_step=module.step if best_step is None else best_step,
        metrics=module.val_metrics if best_step is None else checkpoints.best_metrics,
    )
    if trainer.is_global_zero:
        exported = checkpoints.last_path if best_step is None else checkpoints.best_path
        _export(exported, run_dir, result)
    return result


def _export(checkpoint: Path, run_dir: Path, result: TrainingResult) -> None:
    """Writes `model/`, and how the run ended into `result.json`."""
    try:
        save_model_directory(load_training_checkpoint(checkpoint), run_dir / "model")
        (run_dir / "result.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{run_dir / 'model'} could not be written ({error}). The checkpoint {checkpoint} "
            "holds the same model."
        ) from error


def _strategy(config: TrainerConfig) -> str:
    """Each backward pass reaches one of the two networks, which plain DDP takes for an error."""
    several = config.strategy == "auto" and str(config.devices) != "1"
    return "ddp_find_unused_parameters_true" if several else config.strategy


def _precision(config: TrainerConfig) -> Any:
    if config.precision != "auto":
        return config.precision
    on_gpu = config.device_kind() == "cuda"
    return "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"
