"""`make_shards`: a folder of images to WebDataset shards."""

from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from omegaconf import DictConfig

from taming.cli.app import program, resolved
from taming.cli.hints import setting
from taming.cli.setting_types import check_types
from taming.workflows.make_shards import make_shards

__all__ = ["main"]

TYPES = {"shard_size": Annotated[int, Ge(1)], "seed": Annotated[int, Ge(0)]}


def main(config: DictConfig) -> None:
    """Writes the shards, and says what they hold and how to train on them."""
    resolved(config)  # missing values first
    check_types(config, TYPES)
    directory = Path(config.output_dir)
    made = make_shards(config.input, directory, shard_size=config.shard_size, seed=config.seed)
    print(
        f"{directory}: {made.num_images:,} images of {made.num_classes or 'no'} classes in "
        f"{made.num_shards:,} shards, {made.size / 2**20:,.1f} MiB\n"
        f"next: train on them:\n  {program('train_vqgan')} {setting('data.path', str(directory))}"
    )
