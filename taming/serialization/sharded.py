"""Training checkpoints that are split among processes: a directory instead of a file.

`torch.distributed.checkpoint` writes the weights and the optimizer's moments as safetensors, one
file per process. `rest.pt` holds the rest of the checkpoint and a checksum of each file. The
library's default files are pickles, and reading a pickle may run code.

Any number of processes can read the directory with `load_sharded_checkpoint`. A single process
reads the whole checkpoint with `load_unsharded`.
"""

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from taming.runtime.process_group import gather, rank

__all__ = ["is_checkpoint", "load_sharded_checkpoint", "load_unsharded", "save_sharded_checkpoint"]

REST_FILE = "rest.pt"


def is_checkpoint(path: Path) -> bool:
    """Returns whether `path` is a training checkpoint: a file, or a sharded directory."""
    return path.is_file() or (path / REST_FILE).is_file()


def save_sharded_checkpoint(checkpoint: dict[str, Any], directory: Path) -> None:
    """Writes a Lightning checkpoint with one optimizer. Every process must call this.

    The `model` entry shares its weights with the state dictionary, so only their names are written.

    Raises:
        CheckpointException: on all processes, if one of them cannot write its shard.
        OSError: on the first process, if it cannot write the rest.
    """
    import torch.distributed.checkpoint as dcp

    rest = dict(checkpoint)
    weights = rest.pop("state_dict")
    (optimizer,) = rest.pop("optimizer_states")
    names = {id(tensor): name for name, tensor in weights.items()}
    rest["model"] = _map_state(rest["model"], lambda tensor: names.get(id(tensor), tensor))
    rest["param_groups"] = optimizer["param_groups"]
    dcp.save(
        {"weights": weights, "moments": optimizer["state"]},
        storage_writer=dcp.HuggingFaceStorageWriter(str(directory), save_distributed=True),
    )
    own_shards = directory.glob(f"shard-{rank() + 1:05d}-*")
    checksums = gather({path.name: _checksum(path) for path in own_shards})
    rest["checksums"] = {name: value for shard in checksums for name, value in shard.items()}
    if rank() == 0:
        torch.save(rest, directory / REST_FILE)


def load_sharded_checkpoint(directory: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    """Loads this process's shards into `tensors`, in the layout of saving; returns the rest."""
    import torch.distributed.checkpoint as dcp

    dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(directory)))
    return _load_rest(directory)


def load_unsharded(directory: Path) -> dict[str, Any]:
    """Loads the checkpoint as if a single process had written it.

    Raises:
        ValueError: if a file does not match its checksum.
    """
    import torch.distributed.checkpoint as dcp

    checkpoint = _load_rest(directory)
    for name, checksum in checkpoint.pop("checksums").items():
        if _checksum(directory / name) != checksum:
            raise ValueError(f"{name} is damaged")
    reader = dcp.HuggingFaceStorageReader(str(directory))
    metadata: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
        for name, tensor in metadata.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # on purpose
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    groups = checkpoint.pop("param_groups")
    numbers = {name: i for i, name in enumerate(n for group in groups for n in group["params"])}
    weights: dict[str, torch.Tensor] = {}
    moments: dict[int, dict[str, torch.Tensor]] = {number: {} for number in numbers.values()}
    for key, tensor in tensors.items():
        entry, name = key.split(".", 1)
        if entry == "weights":
            weights[name] = tensor
        else:
            name, moment = name.rsplit(".", 1)
            moments[numbers[name]][moment] = tensor
    groups = [{**group, "params": [numbers[n] for n in group["params"]]} for group in groups]
    checkpoint["state_dict"] = weights
    checkpoint["optimizer_states"] = [{"state": moments, "param_groups": groups}]
    checkpoint["model"] = _map_state(
        checkpoint["model"], lambda value: weights[value] if isinstance(value, str) else value
    )
    return checkpoint


def _load_rest(directory: Path) -> dict[str, Any]:
    rest: dict[str, Any] = torch.load(directory / REST_FILE, map_location="cpu", weights_only=True)
    return rest


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**24):
            value = zlib.crc32(block, value)
    return value


def _map_state(entry: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Applies a function to every weight in a model's entry and in its parts."""
    return {
        **entry,
        "state": {name: function(value) for name, value in entry["state"].items()},
        "parts": {name: _map_state(part, function) for name, part in entry["parts"].items()},
    }
