"""Model directories: `config.json` and `model.safetensors`, a model's parts in sub-directories."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from taming.errors import UserError

__all__ = [
    "CONFIG_FILE",
    "FORMAT_VERSION",
    "SavedModel",
    "check_destination",
    "check_format_version",
    "load_model_directory",
    "save_model_directory",
]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 1


@dataclass
class SavedModel:
    """A model as plain data: what a model directory and a training checkpoint both hold.

    Attributes:
        kind: `"vqgan"`, `"gpt"`, `"generator"` …: which class it is a model of.
        config: plain dictionary from which the model is rebuilt; JSON-serialisable.
        state: the model's own weights by name; empty for a model that only joins parts.
        parts: models this one is made of, by name (`"tokenizer"`, `"transformer"`).
        source: the file or directory it was read from, for messages.
    """

    kind: str
    config: dict[str, Any]
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    parts: dict[str, "SavedModel"] = field(default_factory=dict)
    source: str = field(default="the saved model", compare=False)

    def require(self, kind: str) -> "SavedModel":
        """Returns the model itself if it is of this kind, else raises a `UserError`."""
        if self.kind != kind:
            raise UserError(f"{self.source} holds a {self.kind}, where a {kind} is needed.")
        return self

    def fingerprint(self) -> str:
        """Hex digest of configuration, weights and parts: the same for equal models only."""
        digest = hashlib.sha256(json.dumps([self.kind, self.config], sort_keys=True).encode())
        for name, tensor in sorted(self.state.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            )
        for name, part in sorted(self.parts.items()):
            digest.update(f"{name} {part.fingerprint()}".encode())
        return digest.hexdigest()


def check_destination(directory: Path) -> None:
    """Checks that a model directory may be written here, which replaces what is there.

    Raises:
        UserError: if `directory` holds something that is not a model directory, or the current
            directory is it or in it.
    """
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        try:
            _load_config(directory)
        except UserError as error:
            raise UserError(f"{directory} exists and is not a model: choose another.") from error
    if Path.cwd().is_relative_to(directory.resolve()):
        raise UserError(
            f"{directory} is the current directory or contains it, and a model directory is "
            "replaced as a whole: give a new directory, for example model."
        )


def save_model_directory(model: SavedModel, directory: str | Path) -> Path:
    """Writes a model directory; an older one in its place is replaced once the new one is whole.

    Raises:
        UserError: see `check_destination`.
        OSError: if the disk is full or not writable; the older one stays then.
    """
    directory = Path(directory)
    check_destination(directory)
    place = directory.resolve()  # a link stays a link
    unfinished = place.with_name(place.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write(model, unfinished)
    except Exception:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)
    unfinished.rename(place)
    return directory


def _write(model: SavedModel, directory: Path) -> None:
    directory.mkdir(parents=True)
    description = {"kind": model.kind, "format_version": FORMAT_VERSION, **model.config}
    (directory / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
    if model.state:
        # clones: safetensors refuses tensors that share storage
        state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state.items()}
        try:
            save_file(state, directory / WEIGHTS_FILE)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(f"{directory / WEIGHTS_FILE}: {error}") from error
    for name, part in model.parts.items():
        _write(part, directory / name)


def load_model_directory(directory: Path) -> SavedModel:
    """Reads a model directory and its parts, weights on the CPU.

    Raises:
        UserError: if a file is missing, damaged or not ours.
    """
    kind, config = _load_config(directory)
    weights = directory / WEIGHTS_FILE
    try:
        state = load_file(weights) if weights.is_file() else {}
    except SafetensorError as error:
        raise UserError(f"{weights} is damaged or incomplete: {error}.") from error
    parts = {
        path.parent.name: load_model_directory(path.parent)
        for path in sorted(directory.glob(f"*/{CONFIG_FILE}"))
    }
    return SavedModel(kind, config, state, parts, source=str(directory))


def _load_config(directory: Path) -> tuple[str, dict[str, Any]]:
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text())
        kind, version = config.pop("kind"), config.pop("format_version", None)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is not the config.json of a model of this project.") from error
    check_format_version(version, path)
    return kind, config


def check_format_version(version: Any, path: Path) -> None:
    """Raises a `UserError` if `path` is of a format version this program does not read."""
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} is of format version {version}, and this program reads version "
            f"{FORMAT_VERSION}: install a newer version of it."
        )
