"""Artifacts of Weights & Biases with their lineage: data → tokenizer → tokens → generator.

An artifact is named after its content, so that what one run makes is what the next one uses, on
this machine or another. Of images and tokens their descriptions are stored, of models the files.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from taming.data import ImageDataset, TokenDataset
from taming.serialization import load_model_directory
from taming.training.loggers import TrackedRun

__all__ = ["log_lineage"]


def log_lineage(
    loggers: Iterable[Logger], run_dir: Path, images: object, trained_on: object
) -> None:
    """Logs the model of a finished run, and what it was made of, where a tracker wants artifacts.

    It was trained on tokens of the images, or on the images themselves. Images that are a data set
    of the user's own are left out.
    """
    for logger in loggers:
        if not isinstance(logger, TrackedRun) or not logger.artifacts:
            continue
        run, model = logger.experiment, run_dir / "model"
        if isinstance(images, ImageDataset):
            _use(run, _data_artifact(images))
        kind = "tokenizer"
        if isinstance(trained_on, TokenDataset):
            kind = "generator"
            for name in ("tokenizer", "condition_tokenizer"):
                if (model / name).is_dir():
                    _use(run, _model_artifact(model / name, "tokenizer"))
            _use(run, _token_artifact(trained_on))
        made = _model_artifact(model, kind)
        run.log_artifact(made, aliases=[run_dir.resolve().name.replace(":", "-")])


def _use(run: Any, artifact: Any) -> None:
    """Declares an input of the run, which is stored if it is not yet.

    `use_artifact` refuses to work offline. The record that it would make of a new artifact is
    understood by `wandb sync`.
    """
    if run.offline:
        run._log_artifact(artifact, aliases=[], is_user_created=True, use_after_commit=True)
    else:
        run.use_artifact(artifact)


def _artifact(kind: str, fingerprint: str, **settings: Any) -> Any:
    import wandb

    return wandb.Artifact(f"{kind}-{fingerprint[:16]}", type=kind, **settings)


def _data_artifact(dataset: ImageDataset) -> Any:
    images = dataset.images
    fingerprint = images.fingerprint()
    content = {
        "fingerprint": fingerprint,
        "num_images": len(images),
        "class_names": images.class_names,
    }
    artifact = _artifact("dataset", fingerprint, description=images.description)
    with artifact.new_file("dataset.json") as file:
        json.dump(content, file, indent=2)
    return artifact


def _token_artifact(tokens: TokenDataset) -> Any:
    metadata = tokens.description.plain()
    artifact = _artifact("tokens", tokens.directory.name, metadata=metadata)
    with artifact.new_file("tokens.json") as file:
        json.dump(metadata, file, indent=2)
    return artifact


def _model_artifact(directory: Path, kind: str) -> Any:
    """Returns a generator's directory, or a tokenizer's without the discriminator beside it."""
    saved = load_model_directory(directory)
    if kind == "generator":
        artifact = _artifact(kind, saved.fingerprint())
        artifact.add_dir(str(directory))
        return artifact
    artifact = _artifact(kind, replace(saved, parts={}).fingerprint())
    for file in (*directory.glob("*.json"), *directory.glob("*.safetensors")):
        artifact.add_file(str(file))
    return artifact
