"""`reconstruct`: encodes and decodes images with a tokenizer."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="reconstruct", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Reconstructs images with a VQGAN or a generator's tokenizer, and measures the quality."""
    from taming.cli.build import build
    from taming.cli.setting_types import check_types
    from taming.evaluation.report import reconstruction_text
    from taming.runtime.devices import find_device, join_processes
    from taming.runtime.process_group import on_first_rank, rank
    from taming.tokenizer import VQGAN

    check_types(config, {"frechet.weights": str | None})
    join_processes()
    config.output_dir = on_first_rank(lambda: config.output_dir)  # it may contain the time
    reconstruct_images = build(config.reconstruction)
    features = None if config.frechet.weights is None else build(config.frechet)
    vqgan = VQGAN.from_pretrained(config.checkpoint).to(find_device(config.device))
    numbers, files = reconstruct_images(vqgan, features=features)
    if rank() > 0:
        return
    print(reconstruction_text(numbers))
    for note in numbers["notes"]:
        print(f"note: {note}")
    for file in files:
        print(f"wrote {file}")
