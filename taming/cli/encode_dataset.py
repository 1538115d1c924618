"""`encode_dataset`: encodes images into a token cache, ahead of `train_transformer`."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="encode_dataset", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Encodes images and their conditions into the cache of stage 2, and checks it."""
    import shlex

    from hydra.core.hydra_config import HydraConfig

    from taming.cli.build import build
    from taming.cli.data import ENCODING_TYPES, load_tokenizer, open_images
    from taming.cli.next_command import print_next, program
    from taming.cli.setting_types import check_types
    from taming.runtime.devices import find_device, join_processes
    from taming.training.encode_dataset import describe_cache

    check_types(config, ENCODING_TYPES)
    join_processes()
    device = find_device(config.device)
    tokenizer = load_tokenizer(config.vqgan)
    images, condition_tokenizer = open_images(config, tokenizer)
    caches = build(config.tokens)(images, tokenizer, condition_tokenizer, device)
    for split, cache in zip(("training", "validation"), caches, strict=True):
        cache.check()
        print(f"{cache.directory}: {describe_cache(cache)} ({split})")
    settings = [o for o in HydraConfig.get().overrides.task if not o.startswith("device=")]
    print_next(
        "next: train on them, with the same settings:\n"
        f"  {program('train_transformer')} {shlex.join(settings)}"
    )
