"""`encode_dataset`: images to a token cache, ahead of `train_transformer`."""

import logging
import shlex

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from taming.cli.app import device, program, resolved
from taming.cli.encoding import ENCODING_TYPES, encode, open_images
from taming.cli.setting_types import check_types
from taming.data import TokenDataset
from taming.serialization import find_model
from taming.vqgan import VQGAN

__all__ = ["main"]

log = logging.getLogger("taming")


def main(config: DictConfig) -> None:
    """Encodes the images, and their conditions, into the cache that stage 2 trains from."""
    resolved(config)  # missing values first
    check_types(config, ENCODING_TYPES)
    where = device(config.device)
    tokenizer = VQGAN.from_pretrained(config.vqgan)
    log.info("tokenizer: %s", find_model(config.vqgan))
    images, condition_tokenizer = open_images(config, tokenizer)
    caches = encode(config, tokenizer, condition_tokenizer, images, where)
    for name, cache in zip(("training", "validation"), caches, strict=True):
        print(f"{cache.directory}: {describe(cache)} ({name})")
    same = [o for o in HydraConfig.get().overrides.task if not o.startswith("device=")]
    print(
        "next: train on them, with the same settings:\n"
        f"  {program('train_transformer')} {shlex.join(same)}"
    )


def describe(cache: TokenDataset) -> str:
    """What is in a cache, and how large it is."""
    parts = []
    for name, array in cache.arrays.items():
        _, _, height, width = array.shape
        what = "condition codes" if name == "condition_indices" else "codes"
        parts.append(f"{height}×{width} {what} each")
    size = sum(array.nbytes for array in cache.arrays.values())
    views = f" in {cache.num_views} views" if cache.num_views > 1 else ""
    return f"{len(cache):,} images{views}, {', '.join(parts)}, {size / 2**20:.1f} MiB"
