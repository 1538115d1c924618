"""Models as plain data: in model directories, and in training checkpoints (`.ckpt`).

A model directory holds `config.json` and `model.safetensors`, and a directory for each part. A
training checkpoint is Lightning's, plus one entry, `model`: the finished model, with EMA weights
where the run has them. Its tensors share storage with the training state, so they cost no disk
space, and whoever reads a model out of a checkpoint need not know how it was trained.
"""

import errno
import hashlib
import json
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from taming.runtime.errors import UserError
from taming.serialization.sharded import is_checkpoint, load_unsharded

__all__ = ["CONFIG_FILE", "FORMAT_VERSION", "DamagedCheckpointError", "SavedModel",
    "checkpoint_entry", "load_model_directory", "load_training_checkpoint",
    "read_training_checkpoint", "save_model_directory", "saved_checkpoints"]  # fmt: skip

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 2  # in 1 layers that are one today were several: see `taming.older_weights`
ENTRY = "model"  # of a checkpoint
IMPORT_FIRST = (
    "Checkpoints of CompVis' or LlamaGen's programs are imported by scripts/import_checkpoint.py "
    "first."
)


class DamagedCheckpointError(UserError):
    """A checkpoint's content, not the disk, is why it cannot be read."""


@dataclass
class SavedModel:
    """Plain data of a model: what a model directory and a training checkpoint both hold.

    Attributes:
        kind: the model's class: `"vqgan"`, `"gpt"`, `"generator"` ….
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
            raise UserError(
                f"{self.source} holds a {self.kind}, where a {kind} is needed (stage 1 makes a "
                "vqgan, stage 2 a generator)."
            )
        return self

    def fingerprint(self) -> str:
        """Returns a hex digest of config, weights and parts: the same for equal models only."""
        digest = hashlib.sha256(json.dumps([self.kind, self.config], sort_keys=True).encode())
        for name, tensor in sorted(self.state.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        for name, part in sorted(self.parts.items()):
            digest.update(f"{name} {part.fingerprint()}".encode())
        return digest.hexdigest()


def save_model_directory(model: SavedModel, directory: str | Path) -> Path:
    """Writes a model directory; an older model in it is replaced once the new one is whole.

    Other files beside a model stay.

    Raises:
        UserError: if there are files and no model.
        OSError: if the disk is full or not writable; the older one stays then.
    """
    directory = Path(directory)
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        try:
            _load_config(directory)
        except UserError as error:
            raise UserError(f"{directory} exists and is not a model: choose another.") from error
    place = directory.resolve()  # a link stays a link
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=f"{place.name}.unfinished") as unfinished:
        new, old = Path(unfinished, "new"), Path(unfinished, "old")
        _write(model, new)
        old.mkdir()
        place.mkdir(exist_ok=True)
        parts = [path.parent for path in place.glob(f"*/{CONFIG_FILE}")]
        for path in [place / CONFIG_FILE, place / WEIGHTS_FILE, *parts]:
            if path.exists():
                path.rename(old / path.name)
        for path in new.iterdir():
            path.rename(place / path.name)
    return directory


def _write(model: SavedModel, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    description = {"kind": model.kind, "format_version": FORMAT_VERSION, **model.config}
    (directory / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
    if model.state:
        # clones: safetensors refuses tensors that share storage
        state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state.items()}
        try:
            save_file(state, directory / WEIGHTS_FILE)  # readable by its owner only
            with suppress(OSError):  # some mounts refuse
                (directory / WEIGHTS_FILE).chmod((directory / CONFIG_FILE).stat().st_mode)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(f"{directory / WEIGHTS_FILE}: {error}") from error
    for name, part in model.parts.items():
        _write(part, directory / name)


def load_model_directory(directory: Path, within: frozenset[Path] = frozenset()) -> SavedModel:
    """Reads a model directory and its parts, weights on the CPU.

    `within` are the directories whose part it is.
    """
    if (place := directory.resolve()) in within:
        raise UserError(f"{directory} is a link to the model that it is a part of.")
    kind, config = _load_config(directory)
    weights = directory / WEIGHTS_FILE
    try:
        state = load_file(weights) if weights.is_file() else {}
    except SafetensorError as error:
        raise UserError(f"{weights} is damaged or incomplete: {error}.") from error
    parts = {
        path.parent.name: load_model_directory(path.parent, within | {place})
        for path in sorted(directory.glob(f"*/{CONFIG_FILE}"))
    }
    return SavedModel(kind, config, state, parts, source=str(directory))


def _load_config(directory: Path) -> tuple[str, dict[str, Any]]:
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text())
        kind, version = config.pop("kind"), config.pop("format_version", None)
    except Exception as error:  # any content, JSON or not
        raise UserError(f"{path} is not the config.json of a model of this project.") from error
    _check_format_version(version, path)
    return kind, config


def checkpoint_entry(model: SavedModel) -> dict[str, Any]:
    """Returns the plain dictionary that goes into a checkpoint under `model`."""
    return {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "config": model.config,
        "state": model.state,
        "parts": {name: checkpoint_entry(part) for name, part in model.parts.items()},
    }


def _saved_model(entry: dict[str, Any], source: str) -> SavedModel:
    parts = {name: _saved_model(part, source) for name, part in entry["parts"].items()}
    return SavedModel(entry["kind"], dict(entry["config"]), dict(entry["state"]), parts, source)


def saved_checkpoints(run_dir: Path) -> list[Path]:
    """Returns the checkpoints that a run has: the last, those before it, newest first, the best."""
    directory = run_dir / "checkpoints"
    earlier = sorted(directory.glob("last-[0-9]*.ckpt"), key=lambda path: (len(path.name), path))
    paths = [directory / "last.ckpt", *earlier, directory / "best.ckpt"]
    return [path for path in paths if is_checkpoint(path)]


def read_training_checkpoint(
    path: Path, *, check: bool = False
) -> tuple[dict[str, Any], SavedModel]:
    """Loads a `.ckpt` on the CPU with `weights_only=True`, so that no code of it runs.

    Of a file, weights are read when they are used. One of several processes is a directory, and is
    read whole: see `taming.serialization.sharded`. With `check` a file is compared with its
    checksums first, as a directory always is.

    Returns:
        The content, and the finished model inside it.

    Raises:
        UserError: if it cannot be read, or is not this project's.
        DamagedCheckpointError: if it is damaged, or holds anything but plain data.
    """
    try:
        if path.is_dir():
            checkpoint = load_unsharded(path)
        else:
            if check:
                _compare_checksums(path)
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file makes pickle, zipfile and torch raise anything
        missing = isinstance(error, FileNotFoundError)
        nowhere = isinstance(error, OSError) and error.errno == errno.EINVAL  # a damaged offset
        if isinstance(error, OSError | MemoryError) and not (missing or nowhere):
            why = str(error) or "too little memory"
            raise UserError(f"{path} cannot be read: {why}.") from error
        raise _unreadable(path) from error
    entry = checkpoint.get(ENTRY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or "format_version" not in entry:
        raise UserError(
            f"{path} is a checkpoint of another program: it has no `{ENTRY}` entry as this "
            f"project's checkpoints have. {IMPORT_FIRST}"
        )
    _check_format_version(entry["format_version"], path)
    try:
        return checkpoint, _saved_model(entry, str(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(path) from error


def _compare_checksums(path: Path) -> None:
    with zipfile.ZipFile(path) as records:  # torch writes their checksums, and reads none
        if (damaged := records.testzip()) is not None:
            raise zipfile.BadZipFile(damaged)


def load_training_checkpoint(path: Path) -> SavedModel:
    """Reads the finished model inside a training checkpoint."""
    return read_training_checkpoint(path)[1]


def _unreadable(path: Path) -> UserError:
    return DamagedCheckpointError(
        f"{path} cannot be read as a checkpoint of this project: it is damaged, incomplete or "
        f"of another program. {IMPORT_FIRST}"
    )


def _check_format_version(version: Any, path: Path) -> None:
    if version not in range(1, FORMAT_VERSION + 1):
        raise UserError(
            f"{path} is of format version {version}, and this program reads versions 1 to "
            f"{FORMAT_VERSION}: install a newer version of it."
        )
