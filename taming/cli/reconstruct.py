"""`reconstruct`: encodes and decodes images with a tokenizer."""

from typing import Any

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
    from taming.runtime.devices import find_device, join_processes
    from taming.runtime.process_group import on_first_rank, rank
    from taming.tokenizer import VQGAN

    check_types(config)
    join_processes()
    config.output_dir = on_first_rank(lambda: config.output_dir)  # it may contain the time
    reconstruct_images = build(config.reconstruction)
    features = None if config.frechet.weights is None else build(config.frechet)
    vqgan = VQGAN.from_pretrained(config.checkpoint).to(find_device(config.device))
    numbers, files = reconstruct_images(vqgan, features=features)
    if rank() > 0:
        return
    print(_table(numbers))
    for note in numbers["notes"]:
        print(f"note: {note}")
    for file in files:
        print(f"wrote {file}")


def _table(numbers: dict[str, Any]) -> str:
    """Returns the numbers as aligned lines."""
    size = numbers["resolution"]
    resolution = "several sizes" if size is None else f"{size[0]}×{size[1]}"
    rows = [
        ("images", f"{numbers['num_images']}, {resolution}"),
        ("PSNR", f"{numbers['psnr']:.2f} dB"),
        ("SSIM", f"{numbers['ssim']:.4f}"),
    ]
    if "lpips" in numbers:
        rows.append(("LPIPS", f"{numbers['lpips']:.4f} ({numbers['lpips_network']})"))
    if "frechet_distance" in numbers:
        distance, network = numbers["frechet_distance"], numbers["frechet_features"]
        rows.append(("Fréchet distance", f"{distance:.4g} ({network}; not FID)"))
    rows += [
        ("codebook usage", f"{numbers['codebook_usage']:.1%} of {numbers['codebook_size']} codes"),
        ("perplexity", f"{numbers['codebook_perplexity']:.1f}"),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows)
