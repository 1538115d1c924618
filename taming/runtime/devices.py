"""The device and the processes that a command computes with."""

import atexit
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from taming.runtime.errors import UserError
from taming.runtime.process_group import rank

__all__ = ["find_device", "join_processes", "silence_other_ranks"]


def find_device(name: str) -> torch.device:
    """Returns the device of a name; `auto` is a GPU if there is one.

    Raises:
        UserError: if there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return device


def join_processes() -> None:
    """Connects this process with the others that `torchrun` has started, if there are any."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=timedelta(days=1))  # they wait while the first one prepares
    atexit.register(dist.destroy_process_group)
    silence_other_ranks()


def silence_other_ranks() -> None:
    """Lets only the first process print and log, except for warnings."""
    if rank() > 0:
        logging.getLogger("taming").setLevel(logging.WARNING)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
