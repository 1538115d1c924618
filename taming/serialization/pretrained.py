"""Models that save and load themselves, and the paths and hub names they load from."""

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
from taming.serialization.foreign import shown
from taming.serialization.hub import HUB_PREFIX, download, upload
from taming.serialization.saved_model import (
    CONFIG_FILE,
    SavedModel,
    load_model_directory,
    load_training_checkpoint,
    save_model_directory,
    saved_checkpoints,
)
from taming.serialization.sharded import is_checkpoint

__all__ = ["PretrainedModel", "find_model", "load_saved_model", "rebuilding"]


class PretrainedModel(nn.Module):
    """A module that is saved as `config` and weights, and rebuilt from them.

    A subclass names its `kind` and keeps its constructor's arguments in `config`; one that is made
    of parts overrides `to_saved` and `from_saved`.
    """

    kind: ClassVar[str]  # the class's name in config.json
    part: ClassVar[str | None] = None  # its name as a part of a generator
    config: Any

    def to_saved(self) -> SavedModel:
        """Returns the model as plain data; the tensors share memory with the model."""
        return SavedModel(self.kind, dict(self.config), dict(self.state_dict()))

    @classmethod
    def from_saved(cls, saved: SavedModel) -> Self:
        """Rebuilds what `to_saved` returned, in eval mode.

        Raises:
            UserError: if it is of another kind, or config and weights do not fit this program.
        """
        saved.require(cls.kind)
        with rebuilding(saved):
            with torch.device("meta"), at_most_about(saved.state):
                cls.from_config(saved.config)
            model = cls.from_config(saved.config)
            model.load_state_dict(saved.state)
        return model.eval()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the model, with random weights, that has this saved config."""
        return construct(cls, config)

    def save_pretrained(self, directory: str | Path) -> Path:
        """Writes a model directory: config.json, model.safetensors, and a directory for each part.

        An earlier model directory in its place is replaced.
        """
        return save_model_directory(self.to_saved(), directory)

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None
    ) -> str:
        """Uploads the model directory to a repository of the Hugging Face hub, in one commit.

        `scripts/share.py` adds a model card to it.

        Args:
            repo: `"owner/name"`; made if it does not exist.
            private: whether a new repository is; None for the owner's default.
            token: of the hub; None for the one that `hf auth login` or `HF_TOKEN` has given.

        Returns:
            The name that `from_pretrained` loads this very model by: `"hf:owner/name@commit"`.

        Raises:
            UserError: without a token, or if the hub cannot be reached or refuses.
        """
        with TemporaryDirectory() as folder:
            directory = self.save_pretrained(Path(folder, "model"))
            message = f"A {self.kind}"
            return upload(directory, repo, private=private, message=message, token=token)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Loads a model or run directory, training checkpoint or hub model; in eval mode.

        A model of the Hugging Face hub is `"hf:owner/name"`, or `"hf:owner/name@revision"` for one
        that stays the same: `revision` is a commit, or a tag or branch.

        Raises:
            MissingPathError: if the path does not exist.
            UserError: if no such model is there, neither alone nor as part of a generator.
        """
        return cls.from_saved(cls.load_saved(path))

    @classmethod
    def load_saved(cls, path: str | Path) -> SavedModel:
        """Reads what `from_pretrained` builds a model from, with the same errors."""
        saved = load_saved_model(path)
        if saved.kind != cls.kind and cls.part in saved.parts:
            saved = saved.parts[cls.part]
        return saved.require(cls.kind)


@contextmanager
def rebuilding(saved: SavedModel) -> Iterator[None]:
    """Says in a sentence why a saved model, perhaps a stranger's, cannot be rebuilt."""
    try:
        yield
    except Exception as error:  # odd values lead to anything
        why = shown(describe_error(error), 300)
        raise UserError(
            f"config or weights of the {saved.kind} in {saved.source} are wrong: {why}"
        ) from error


@contextmanager
def at_most_about(state: Mapping[str, Tensor]) -> Iterator[None]:
    """Stops this thread from building a model of much more than twice the numbers in `state`.

    Raises:
        ValueError: in the model's constructor.
    """
    thread = threading.get_ident()
    num_tensors = 2 * len(state) + 100
    num_numbers = 2 * sum(tensor.numel() for tensor in state.values()) + 2**24

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal num_tensors, num_numbers
        if threading.get_ident() != thread:  # the hooks are for the whole process
            return
        num_tensors -= 1
        num_numbers -= 0 if tensor is None else tensor.numel()
        if num_tensors < 0 or num_numbers < 0:
            raise ValueError("the config is of a much larger model than the weights")

    with (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ):
        yield


def find_model(path: str | Path) -> Path:
    """Returns the model directory or checkpoint that `path` refers to.

    In order: a `.ckpt`, which is a directory where several processes have split the weights; a
    model directory; a run directory, of which its `model/` is taken, or, while the run has not
    ended, the first of its `saved_checkpoints`; `"hf:owner/name"` or
    `"hf:owner/name@revision"` for the Hugging Face hub. A path that does not exist is never taken
    for a hub name.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if what is there is not a model.
    """
    if str(path).startswith(HUB_PREFIX):
        return download(str(path).removeprefix(HUB_PREFIX))
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a run directory, a model "
            "directory, a .ckpt file, or hf:owner/name for a model on the Hugging Face hub."
        )
    for found in (path, path / "model", *saved_checkpoints(path)):
        if is_checkpoint(found) or (found / CONFIG_FILE).is_file():
            return found
    raise UserError(
        f"{path} is neither a model directory (no config.json) nor a run directory (no model/, "
        "no checkpoints/last.ckpt)."
    )


def load_saved_model(path: str | Path) -> SavedModel:
    """Reads the model that `path` refers to (see `find_model`), weights on the CPU."""
    found = find_model(path)
    return load_training_checkpoint(found) if is_checkpoint(found) else load_model_directory(found)
