"""`sample`: images from a generator."""

from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import build, command, device, resolved
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
