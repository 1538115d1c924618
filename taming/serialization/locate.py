"""From what a user types to a saved model: model directory, run directory, `.ckpt` or hub name."""

from pathlib import Path

from taming.errors import MissingPathError, UserError
from taming.serialization.directory import SavedModel, is_model_directory, load_model_directory
from taming.serialization.training_checkpoint import load_training_checkpoint

__all__ = ["find_model", "load_saved_model"]

HUB_PREFIX = "hf:"


def find_model(path: str | Path) -> Path:
    """The model directory or checkpoint file that `path` means.

    In order: a `.ckpt` file; a model directory; a run directory, of which its `model/` is taken,
    or, while the run has not ended, `checkpoints/best.ckpt`, else `checkpoints/last.ckpt`;
    `"hf:owner/name"` for the Hugging Face hub. A path that does not exist is never taken for a hub
    name.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if what is there is not a model.
    """
    if str(path).startswith(HUB_PREFIX):
        return _download(str(path).removeprefix(HUB_PREFIX))
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a run directory, a model "
            "directory, a .ckpt file, or hf:owner/name for a model on the Hugging Face hub."
        )
    if path.is_file():
        return path
    candidates = [
        path / "model",
        path / "checkpoints" / "best.ckpt",
        path / "checkpoints" / "last.ckpt",
    ]
    for candidate in [path, *candidates]:
        if candidate.is_file() or is_model_directory(candidate):
            return candidate
    raise UserError(
        f"{path} is neither a model directory (no config.json) nor a run directory (no model/, "
        "no checkpoints/best.ckpt or last.ckpt)."
    )


def load_saved_model(path: str | Path) -> SavedModel:
    """Reads the model that `path` means (see `find_model`), weights on the CPU."""
    found = find_model(path)
    return load_training_checkpoint(found) if found.is_file() else load_model_directory(found)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise UserError(
            f"{HUB_PREFIX}{name} could not be fetched from the Hugging Face hub: {first_line}. "
            "Check the name and the network, or download the model directory by hand and give its "
            "path."
        ) from error
