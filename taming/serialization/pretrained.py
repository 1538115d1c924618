"""Models that save and load themselves, and the paths and hub names that refer to them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from taming.runtime.errors import MissingPathError, UserError
from taming.serialization.arguments import construct, describe_error
from taming.serialization.foreign import printable_name
from taming.serialization.hub import HUB_PREFIX, download, upload
from taming.serialization.saved_model import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    SavedModel,
    load_model_directory,
    load_training_checkpoint,
    save_model_directory,
    saved_checkpoints,
)
from taming.serialization.sharded import is_checkpoint

__all__ = ["PretrainedModel", "find_model", "load_saved_model", "rebuilding"]


class PretrainedModel(nn.Module):
    """A module that is saved as a config and weights, and rebuilt from them.

    A subclass sets `kind` and stores its constructor's arguments in `config`. A model with parts
    overrides `to_saved` and `from_saved`.
    """

    kind: ClassVar[str]  # name of the class in config.json
    part: ClassVar[str | None] = None  # name of the model as a part of a generator
    config: Any

    def to_saved(self) -> SavedModel:
        """Returns the model as plain data; the tensors share memory with the model."""
        return SavedModel(self.kind, dict(self.config), dict(self.state_dict()))

    @classmethod
    def from_saved(cls, saved_model: SavedModel) -> Self:
        """Rebuilds a model from plain data, in eval mode.

        Raises:
            UserError: if the model is of another kind, or its config or weights are wrong.
        """
        saved_model.require(cls.kind)
        with rebuilding(saved_model):
            with torch.device("meta"), limited_size(saved_model.state):
                cls.from_config(saved_model.config)
            model = cls.from_config(saved_model.config)
            model.load_state_dict(saved_model.state)
        return model.eval()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Builds a model with random weights from a saved config."""
        return construct(cls, config)

    def save_pretrained(self, directory: str | Path) -> Path:
        """Writes config.json, model.safetensors and a subdirectory for each part.

        An earlier model in the directory is replaced.
        """
        return save_model_directory(self.to_saved(), directory)

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None
    ) -> str:
        """Uploads the model directory to the Hugging Face hub as one commit.

        `scripts/share.py` uploads a model card too.

        Args:
            repo: `"owner/name"`. A missing repository is created.
            private: whether a new repository is private; None for the owner's default.
            token: access token of the hub; None for the token of `hf auth login` or `HF_TOKEN`.

        Returns:
            The name that loads exactly this model: `"hf:owner/name@commit"`.

        Raises:
            UserError: if there is no token, or the hub cannot be reached or refuses.
        """
        with TemporaryDirectory() as folder:
            directory = self.save_pretrained(Path(folder, "model"))
            message = f"Upload {self.kind}"
            return upload(directory, repo, private=private, message=message, token=token)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Loads a model in eval mode from any path or name that `find_model` accepts.

        Raises:
            MissingPathError: if the path does not exist.
            UserError: if it holds no model of this class, alone or as part of a generator.
        """
        return cls.from_saved(cls.load_saved(path))

    @classmethod
    def load_saved(cls, path: str | Path) -> SavedModel:
        """Reads the plain data of the model that `from_pretrained` would build."""
        saved_model = load_saved_model(path)
        if saved_model.kind != cls.kind and cls.part in saved_model.parts:
            saved_model = saved_model.parts[cls.part]
        return saved_model.require(cls.kind)


@contextmanager
def rebuilding(saved_model: SavedModel) -> Iterator[None]:
    """Raises a `UserError` if the config or the weights of a saved model are wrong."""
    try:
        yield
    except Exception as error:  # an untrusted config can raise anything
        reason = printable_name(describe_error(error), 300)
        raise UserError(
            f"config or weights of the {saved_model.kind} in {saved_model.source} are wrong: "
            f"{reason}"
        ) from error


@contextmanager
def limited_size(state: Mapping[str, Tensor]) -> Iterator[None]:
    """Limits the models that this thread builds to about twice the size of `state`.

    Raises:
        ValueError: in the constructor of a larger model.
    """
    thread = threading.get_ident()
    num_tensors = 2 * len(state) + 100
    num_numbers = 2 * sum(tensor.numel() for tensor in state.values()) + 2**24

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal num_tensors, num_numbers
        if threading.get_ident() != thread:  # PyTorch calls the hooks for every thread
            return
        num_tensors -= 1
        num_numbers -= 0 if tensor is None else tensor.numel()
        if num_tensors < 0 or num_numbers < 0:
            raise ValueError("the config describes a much larger model than the weights")

    with (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ):
        yield


def find_model(path: str | Path) -> Path:
    """Returns the model directory or training checkpoint that `path` refers to.

    Args:
        path: one of the following. A path that does not exist is never taken for a hub name.

            - a model directory, or its `config.json` or `model.safetensors`
            - a training checkpoint: a `.ckpt` file or a sharded directory
            - a run directory, for its `model/`; during training for the first of its
              `saved_checkpoints`
            - `"hf:owner/name"` or `"hf:owner/name@revision"` for a model on the Hugging Face hub

    Raises:
        MissingPathError: if the path does not exist.
        UserError: if it does not refer to a model.
    """
    if str(path).startswith(HUB_PREFIX):
        return download(str(path).removeprefix(HUB_PREFIX))
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a run directory, a model "
            "directory, a .ckpt file, or hf:owner/name for a model on the Hugging Face hub."
        )
    if path.name in (CONFIG_FILE, WEIGHTS_FILE):
        path = path.parent
    for candidate in (path, path / "model", *saved_checkpoints(path)):
        if is_checkpoint(candidate) or (candidate / CONFIG_FILE).is_file():
            return candidate
    raise UserError(
        f"{path} is neither a model directory (no config.json) nor a run directory (no model/, "
        "no checkpoints/last.ckpt)."
    )


def load_saved_model(path: str | Path) -> SavedModel:
    """Reads the model that `path` refers to (see `find_model`), with the weights on the CPU."""
    path = find_model(path)
    return load_training_checkpoint(path) if is_checkpoint(path) else load_model_directory(path)
