"""`make_shards`: packs a folder of images into WebDataset shards."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="make_shards", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Writes the shards, and prints what they hold and how to train on them."""
    from taming.cli.build import build
    from taming.cli.next_command import print_next, program, setting
    from taming.cli.setting_types import check_types

    check_types(config)
    result = build(config.make_shards)
    print(
        f"{config.output_dir}: {result.num_images:,} images of {result.num_classes or 'no'} "
        f"classes in {result.num_shards:,} shards, {result.size / 2**20:,.1f} MiB"
    )
    data = setting("data.path", config.output_dir)
    print_next(f"next: train on them:\n  {program('train_vqgan')} data=huggingface {data}")
