"""Weights & Biases: the logger, and artifacts with their lineage.

Artifacts lead from the data to the tokenizer, the tokens and the generator. Their names depend on
their content, so that the output of one run is the input of the next, even on another machine. An
artifact of a model holds its files, and an artifact of images or tokens only a description.
"""

import json
import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger, WandbLogger

from taming.data import ImageDataset, TokenDataset
from taming.serialization import load_model_directory

__all__ = ["finish_wandb", "log_lineage", "wandb_logger"]

log = logging.getLogger("taming")


class ArtifactLogger(WandbLogger):
    """A `WandbLogger` of a run that stores its model as an artifact."""


def wandb_logger(
    save_dir: str | Path,
    *,
    project: str = "taming",
    name: str | None = None,
    mode: Literal["online", "offline", "disabled"] | None = None,
    artifacts: bool = False,
    **settings: Any,
) -> WandbLogger:
    """Returns Lightning's logger for Weights & Biases, offline by default.

    Lightning's own default is online and needs an account. A resumed run continues the same run on
    the server. In a sweep of `wandb agent`, the run is the agent's.

    Args:
        save_dir: the run directory.
        project: name of the project.
        name: name of the run; None for the name of the run directory.
        mode: None for the environment variable `WANDB_MODE`, or else offline.
        artifacts: whether `log_lineage` logs the model and its inputs.
        settings: further arguments of `WandbLogger` and `wandb.init`.
    """
    import wandb

    options = wandb.Settings(console="off", silent=True, init_timeout=60, finish_timeout=60)
    wandb.setup(options)  # silent early enough for a warning about an argument of Lightning
    run_dir = Path(save_dir)
    id_file = run_dir / "wandb_id.txt"
    if not id_file.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
        id_file.write_text(run_id + "\n")

    logger = partial(
        ArtifactLogger if artifacts else WandbLogger,
        name=name or run_dir.name,
        project=project,
        version=id_file.read_text().strip(),
        save_dir=run_dir.resolve(),
        settings=options,
        **settings,
    )

    mode = mode or os.environ.get("WANDB_MODE") or "offline"  # type: ignore[assignment]
    if mode != "online":
        return logger(mode=mode)
    if not wandb.api.api_key:
        log.warning(
            "wandb: there is no API key, so this run is tracked offline. Log in with `wandb "
            "login`, or upload the run later with `wandb sync`."
        )
        return logger(mode="offline")
    online = logger(mode="online")
    try:
        _ = online.experiment
    except wandb.errors.Error as error:
        reason = str(error).splitlines()[0]
        log.warning("wandb: %s. This run is tracked offline; `wandb sync` uploads it.", reason)
        wandb.teardown()  # forgets the failed run
        return logger(mode="offline")
    return online


def finish_wandb(loggers: Sequence[Logger]) -> None:
    """Finishes the run of Weights & Biases, so that the next job of a sweep gets its own."""
    if any(isinstance(logger, WandbLogger) for logger in loggers):
        import wandb

        wandb.finish()


def log_lineage(
    loggers: Sequence[Logger], run_dir: Path, images: object, train_dataset: object
) -> None:
    """Logs the model of a finished run and its inputs, where a logger wants artifacts.

    Weights & Biases records inputs only online. The metadata of the model therefore names them too.
    Training items are tokens of the `images`, or the images themselves. Images that are not an
    `ImageDataset` are not logged.
    """
    for logger in loggers:
        if not isinstance(logger, ArtifactLogger):
            continue
        model, inputs = run_dir / "model", []
        if isinstance(images, ImageDataset):
            inputs.append(_data_artifact(images))
        kind = "tokenizer"
        if isinstance(train_dataset, TokenDataset):
            kind = "generator"
            for name in ("tokenizer", "condition_tokenizer"):
                if (model / name).is_dir():
                    inputs.append(_model_artifact(model / name, "tokenizer"))
            inputs.append(_token_artifact(train_dataset))
        run = logger.experiment
        names = [artifact.name for artifact in inputs]
        for artifact in inputs:
            if run.offline:
                run.log_artifact(artifact)
            else:
                run.use_artifact(artifact)
        output = _model_artifact(model, kind, metadata={"inputs": names})
        run.log_artifact(output, aliases=[run_dir.resolve().name.replace(":", "-")])


def _artifact(kind: str, fingerprint: str, **settings: Any) -> Any:
    import wandb

    return wandb.Artifact(f"{kind}-{fingerprint[:16]}", type=kind, **settings)


def _data_artifact(dataset: ImageDataset) -> Any:
    images = dataset.images
    fingerprint = images.fingerprint()
    artifact = _artifact("dataset", fingerprint, description=images.description)
    numbers = {"fingerprint": fingerprint, "num_images": len(images)}
    with artifact.new_file("dataset.json") as file:
        json.dump({**numbers, "class_names": images.class_names}, file, indent=2)
    return artifact


def _token_artifact(tokens: TokenDataset) -> Any:
    metadata = tokens.description.plain()
    artifact = _artifact("tokens", tokens.directory.name, metadata=metadata)
    with artifact.new_file("tokens.json") as file:
        json.dump(metadata, file, indent=2)
    return artifact


def _model_artifact(directory: Path, kind: str, **settings: Any) -> Any:
    """Returns the artifact of a model directory; a tokenizer's leaves out the discriminator."""
    saved = load_model_directory(directory)
    if kind == "generator":
        artifact = _artifact(kind, saved.fingerprint(), **settings)
        artifact.add_dir(str(directory))
        return artifact
    artifact = _artifact(kind, replace(saved, parts={}).fingerprint(), **settings)
    for file in (*directory.glob("*.json"), *directory.glob("*.safetensors")):
        artifact.add_file(str(file))
    return artifact
