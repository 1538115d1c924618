"""`encode_dataset`: images to a token cache, ahead of `train_transformer`."""

import logging
import shlex

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from taming.cli.app import find_device, join_processes, program
from taming.cli.data import ENCODING_TYPES, encode, open_images
from taming.cli.setting_types import check_types
from taming.data import TokenDataset
from taming.serialization import find_model
from taming.tokenizer import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> None:
    """Encodes images and their conditions into the cache of stage 2, and checks all of it."""
    check_types(config, ENCODING_TYPES)
    join_processes(config)
    device = find_device(config.device)
    tokenizer = VQGAN.from_pretrained(config.vqgan)
    log.info("tokenizer: %s", find_model(config.vqgan))
    images, condition_tokenizer = open_images(config, tokenizer)
    caches = encode(config, tokenizer, condition_tokenizer, images, device)
    for name, cache in zip(("training", "validation"), caches, strict=True):
        cache.check()
        print(f"{cache.directory}: {describe(cache)} ({name})")
    same = [o for o in HydraConfig.get().overrides.task if not o.startswith("device=")]
    print(
        "next: train on them, with the same settings:\n"
        f"  {program('train_transformer')} {shlex.join(same)}"
    )


def describe(cache: TokenDataset) -> str:
    """Says what is in a cache, and how large it is."""
    made = cache.description
    text = f"{len(cache):,} images"
    if made.num_views > 1:
        text += f" in {made.num_views} views"
    text += ", {}×{} codes each".format(*made.indices.grid_size)
    if made.condition_indices is not None:
        text += ", {}×{} condition codes each".format(*made.condition_indices.grid_size)
    size = sum(array.nbytes for array in cache.arrays.values())
    return f"{text}, {size / 2**20:.1f} MiB"
