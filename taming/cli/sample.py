"""`sample`: images from a generator."""

from pathlib import Path

import torch
from omegaconf import DictConfig

from taming.cli.app import build, command, resolved
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.workflows import sample_images

__all__ = ["main"]


@command("sample")
def main(config: DictConfig) -> None:
    """Samples images from a generator directory, run or checkpoint."""
    plain = resolved(config)
    settings = build(config.sampling)
    generator = ImageGenerator.from_pretrained(plain["checkpoint"]).to(device(plain["device"]))
    for path in sample_images(generator, settings, Path(plain["output_dir"]).expanduser()):
        print(f"wrote {path}")


def device(name: str) -> torch.device:
    """The device a configuration names; `auto` is a GPU if there is one.

    Raises:
        UserError: if PyTorch knows no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return found
