"""`make_shards`: a folder of images to WebDataset shards."""

from omegaconf import DictConfig

from taming.cli.app import build, program, resolved
from taming.cli.hints import setting

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Writes the shards, and says what they hold and how to train on them."""
    directory = resolved(config)["output_dir"]  # missing values first
    made = build(config.make_shards)
    print(
        f"{directory}: {made.num_images:,} images of {made.num_classes or 'no'} classes in "
        f"{made.num_shards:,} shards, {made.size / 2**20:,.1f} MiB\n"
        f"next: train on them:\n  {program('train_vqgan')} data=huggingface "
        f"{setting('data.path', directory)}"
    )
