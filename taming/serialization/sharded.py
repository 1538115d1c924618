"""Training checkpoints whose weights are split among processes: directories, not files.

`torch.distributed.checkpoint` writes the weights and the optimizer's moments into safetensors
files, one a process, and `rest.pt` is all else of the checkpoint, with their checksums. PyTorch's
default files would run code of whoever made them when they are read. Any number of processes can
read the directory, each its parts; here is what a single process needs to read the whole of it.
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
    """Returns whether a training checkpoint is there: a file, or the directory of several."""
    return path.is_file() or (path / REST_FILE).is_file()


def save_sharded_checkpoint(checkpoint: dict[str, Any], directory: Path) -> None:
    """Writes a checkpoint of Lightning's with one optimizer; every process must call it.

    The model in it, which shares its weights with the state, is written as their names.

    Raises:
        CheckpointException: on all processes, if one of them cannot write its part.
        OSError: on the first, if it cannot write the rest.
    """
    import torch.distributed.checkpoint as dcp

    rest = dict(checkpoint)
    weights = rest.pop("state_dict")
    (optimizer,) = rest.pop("optimizer_states")
    names = {id(tensor): name for name, tensor in weights.items()}
    rest["model"] = _with_state(rest["model"], lambda tensor: names.get(id(tensor), tensor))
    rest["param_groups"] = optimizer["param_groups"]
    dcp.save(
        {"weights": weights, "moments": optimizer["state"]},
        storage_writer=dcp.HuggingFaceStorageWriter(str(directory), save_distributed=True),
    )
    mine = directory.glob(f"shard-{rank() + 1:05d}-*")
    shards = gather({path.name: _checksum(path) for path in mine})
    rest["checksums"] = {name: value for shard in shards for name, value in shard.items()}
    if rank() == 0:
        torch.save(rest, directory / REST_FILE)


def load_sharded_checkpoint(directory: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    """Loads this process's parts into `tensors`, laid out as they were saved; returns the rest."""
    import torch.distributed.checkpoint as dcp

    dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(directory)))
    return _rest(directory)


def load_unsharded(directory: Path) -> dict[str, Any]:
    """Loads the whole checkpoint as that of a single process would be.

    Raises:
        ValueError: if a file has changed since it was written.
    """
    import torch.distributed.checkpoint as dcp

    checkpoint = _rest(directory)
    for name, checksum in checkpoint.pop("checksums").items():
        if _checksum(directory / name) != checksum:
            raise ValueError(f"{name} is damaged")
    reader = dcp.HuggingFaceStorageReader(str(directory))
    described: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in described.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it should
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    groups = checkpoint.pop("param_groups")
    numbers = {name: i for i, name in enumerate(n for group in groups for n in group["params"])}
    weights: dict[str, torch.Tensor] = {}
    moments: dict[int, dict[str, torch.Tensor]] = {number: {} for number in numbers.values()}
    for key, tensor in tensors.items():
        kind, name = key.split(".", 1)
        if kind == "weights":
            weights[name] = tensor
        else:
            name, moment = name.rsplit(".", 1)
            moments[numbers[name]][moment] = tensor
    groups = [{**group, "params": [numbers[n] for n in group["params"]]} for group in groups]
    checkpoint["state_dict"] = weights
    checkpoint["optimizer_states"] = [{"state": moments, "param_groups": groups}]
    checkpoint["model"] = _with_state(
        checkpoint["model"], lambda value: weights[value] if isinstance(value, str) else value
    )
    return checkpoint


def _rest(directory: Path) -> dict[str, Any]:
    rest: dict[str, Any] = torch.load(directory / REST_FILE, map_location="cpu", weights_only=True)
    return rest


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**24):
            value = zlib.crc32(block, value)
    return value


def _with_state(entry: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns a model's entry with every value of its states, and of its parts', changed."""
    return {
        **entry,
        "state": {name: change(value) for name, value in entry["state"].items()},
        "parts": {name: _with_state(part, change) for name, part in entry["parts"].items()},
    }
