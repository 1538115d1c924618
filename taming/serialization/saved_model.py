"""Models as plain data, and the two places that hold them.

A model directory holds `config.json` and `model.safetensors`, and a subdirectory for each part. A
training checkpoint (`.ckpt`) is a Lightning checkpoint with an additional entry, `model`: the
finished model, with EMA weights if the run has them. Its tensors share storage with the training
state, so they need no extra disk space.
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

__all__ = ["CONFIG_FILE", "WEIGHTS_FILE", "DamagedCheckpointError", "SavedModel",
    "checkpoint_entry", "is_only_a_model", "load_model_directory", "load_training_checkpoint",
    "read_training_checkpoint", "replace_model", "save_model_directory",
    "saved_checkpoints"]  # fmt: skip

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
MODEL_FILES = (WEIGHTS_FILE, CONFIG_FILE)  # in the order of writing
PARTS = f"*/{CONFIG_FILE}"
FORMAT_VERSION = 2
ENTRY = "model"  # of a training checkpoint
IMPORT_ADVICE = (
    "Convert a checkpoint of CompVis or LlamaGen with scripts/import_checkpoint.py first."
)


class DamagedCheckpointError(UserError):
    """The content of a checkpoint is damaged; the disk itself works."""


@dataclass
class SavedModel:
    """A model as plain data.

    Attributes:
        kind: name of the model's class: `"vqgan"`, `"gpt"`, `"generator"` and so on.
        config: JSON-serialisable dictionary from which the model is rebuilt.
        state: the model's own weights by name; empty for a model that only joins parts.
        parts: submodels by name, such as `"tokenizer"` and `"transformer"`.
        source: the file or directory the model was read from, for messages.
    """

    kind: str
    config: dict[str, Any]
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    parts: dict[str, "SavedModel"] = field(default_factory=dict)
    source: str = field(default="the saved model", compare=False)

    def require(self, kind: str) -> "SavedModel":
        """Returns the model, or raises a `UserError` if it is of another kind."""
        if self.kind != kind:
            raise UserError(
                f"{self.source} holds a {self.kind}, but a {kind} is needed. Stage 1 trains a "
                "vqgan, stage 2 a generator."
            )
        return self

    def fingerprint(self) -> str:
        """Returns a hex digest of config, weights and parts. Only equal models share it."""
        digest = hashlib.sha256(json.dumps([self.kind, self.config], sort_keys=True).encode())
        for name, tensor in sorted(self.state.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        for name, part in sorted(self.parts.items()):
            digest.update(f"{name} {part.fingerprint()}".encode())
        return digest.hexdigest()


def save_model_directory(model: SavedModel, directory: str | Path) -> Path:
    """Writes a model directory, and replaces an earlier model once the new one is complete.

    Files that do not belong to the model stay.

    Raises:
        UserError: if the directory holds files but no model.
        OSError: if the disk is full or not writable. The earlier model then stays.
    """
    directory = Path(directory)
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        try:
            _load_config(directory)
        except UserError as error:
            raise UserError(
                f"{directory} exists and is not a model directory. Choose another path."
            ) from error
    return replace_model(model, directory)


def replace_model(model: SavedModel, directory: Path) -> Path:
    """Writes a model over an earlier or incomplete one in `directory`. Other files there stay.

    Raises:
        OSError: if the disk is full or not writable. The earlier model then stays.
    """
    target = directory.resolve()  # follow a symbolic link instead of replacing it
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.unfinished") as unfinished:
        _write(model, Path(unfinished, "new"))
        _move(Path(unfinished, "new"), target)
    return directory


def _move(new: Path, target: Path) -> None:
    """Moves a model's files over an earlier model's files, and removes missing parts."""
    if target.is_symlink():  # a part that is elsewhere
        target.unlink()
    target.mkdir(exist_ok=True)
    parts = {path.parent.name for path in new.glob(PARTS)}
    parts |= {path.parent.name for path in target.glob(PARTS) if _is_model(path.parent)}
    for name in parts:
        _move(new / name, target / name)
    for name in MODEL_FILES:
        if (new / name).exists():
            (new / name).replace(target / name)
        else:
            (target / name).unlink(missing_ok=True)
    with suppress(OSError):  # it is in use, or holds other files
        target.rmdir()


def _is_model(directory: Path) -> bool:
    try:
        _load_config(directory)
    except UserError:
        return False
    return True


def is_only_a_model(directory: Path) -> bool:
    """Returns whether a directory holds nothing but a model's files, at any depth, or is empty."""
    return not directory.is_symlink() and all(
        is_only_a_model(path) if path.is_dir() else path.name in MODEL_FILES
        for path in directory.iterdir()
    )


def _write(model: SavedModel, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    description = {"kind": model.kind, "format_version": FORMAT_VERSION, **model.config}
    (directory / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
    if model.state:
        # safetensors refuses tensors that share storage
        state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state.items()}
        try:
            save_file(state, directory / WEIGHTS_FILE)  # safetensors allows only its owner to read
            with suppress(OSError):  # some mounts have no permissions
                (directory / WEIGHTS_FILE).chmod((directory / CONFIG_FILE).stat().st_mode)
        except SafetensorError as error:  # for example a full disk
            raise OSError(f"{directory / WEIGHTS_FILE}: {error}") from error
    for name, part in model.parts.items():
        _write(part, directory / name)


def load_model_directory(directory: Path, parents: frozenset[Path] = frozenset()) -> SavedModel:
    """Reads a model directory and its parts, with the weights on the CPU.

    `parents` are the models that contain this one.
    """
    if (resolved := directory.resolve()) in parents:
        raise UserError(f"{directory} is a link to a model that contains it.")
    kind, config = _load_config(directory)
    weights = directory / WEIGHTS_FILE
    try:
        state = load_file(weights) if weights.is_file() else {}
    except SafetensorError as error:
        raise UserError(f"{weights} is damaged or incomplete: {error}.") from error
    parts = {
        path.parent.name: load_model_directory(path.parent, parents | {resolved})
        for path in sorted(directory.glob(PARTS))
    }
    return SavedModel(kind, config, state, parts, source=str(directory))


def _load_config(directory: Path) -> tuple[str, dict[str, Any]]:
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text())
        kind, version = config.pop("kind"), config.pop("format_version", None)
    except Exception as error:  # any content, JSON or not
        raise UserError(f"{path} does not describe a model of this program.") from error
    _check_format_version(version, path)
    return kind, config


def checkpoint_entry(model: SavedModel) -> dict[str, Any]:
    """Returns the `model` entry of a training checkpoint."""
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
    """Returns a run's checkpoints: the last, earlier ones from new to old, then the best."""
    directory = run_dir / "checkpoints"
    earlier = sorted(directory.glob("last-[0-9]*.ckpt"), key=lambda path: (len(path.name), path))
    paths = [directory / "last.ckpt", *earlier, directory / "best.ckpt"]
    return [path for path in paths if is_checkpoint(path)]


def read_training_checkpoint(
    path: Path, *, check: bool = False
) -> tuple[dict[str, Any], SavedModel]:
    """Loads a training checkpoint on the CPU without running code in it.

    Weights in a file are memory-mapped. A sharded directory is read completely.

    Args:
        path: a `.ckpt` file or a sharded directory.
        check: whether to compare a file with its checksums; a directory is always compared.

    Returns:
        The checkpoint, and the finished model inside it.

    Raises:
        UserError: if the checkpoint cannot be read, or another program wrote it.
        DamagedCheckpointError: if it is damaged, or holds anything but plain data.
    """
    try:
        if path.is_dir():
            checkpoint = load_unsharded(path)
        else:
            if check:  # torch.save writes checksums, torch.load ignores them
                with zipfile.ZipFile(path) as records:
                    if (record := records.testzip()) is not None:
                        raise zipfile.BadZipFile(record)
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file makes pickle, zipfile and torch raise anything
        is_missing = isinstance(error, FileNotFoundError)  # a shard, of a directory
        has_bad_offset = isinstance(error, OSError) and error.errno == errno.EINVAL
        if isinstance(error, OSError | MemoryError) and not (is_missing or has_bad_offset):
            reason = str(error) or "not enough memory"
            raise UserError(f"{path} cannot be read: {reason}.") from error
        raise _damaged(path) from error
    entry = checkpoint.get(ENTRY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or "format_version" not in entry:
        raise UserError(
            f"{path} is a checkpoint of another program because it has no `{ENTRY}` entry with a "
            f"format version. {IMPORT_ADVICE}"
        )
    _check_format_version(entry["format_version"], path)
    try:
        return checkpoint, _saved_model(entry, str(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error


def load_training_checkpoint(path: Path) -> SavedModel:
    """Returns the finished model inside a training checkpoint."""
    return read_training_checkpoint(path)[1]


def _damaged(path: Path) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{path} cannot be read. It is damaged, incomplete or of another program. {IMPORT_ADVICE}"
    )


def _check_format_version(version: Any, path: Path) -> None:
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version}, but this program reads version "
            f"{FORMAT_VERSION}. Use the version of the program that wrote it."
        )
