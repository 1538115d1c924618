"""`reconstruct`: images through a tokenizer and back."""

from typing import Any

from omegaconf import DictConfig

from taming.cli.app import build, find_device, join_processes, resolved
from taming.runtime.process_group import rank
from taming.tokenizer import VQGAN

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Reconstructs images with a VQGAN, or the tokenizer of a generator, and measures how well."""
    plain = resolved(config)
    join_processes(config)
    reconstruct_images = build(config.reconstruction)
    features = None if config.frechet.weights is None else build(config.frechet)
    vqgan = VQGAN.from_pretrained(plain["checkpoint"]).to(find_device(plain["device"]))
    numbers, written = reconstruct_images(vqgan, features=features)
    if rank() > 0:
        return
    print(table(numbers))
    for note in numbers["notes"]:
        print(f"note: {note}")
    for path in written:
        print(f"wrote {path}")


def table(numbers: dict[str, Any]) -> str:
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
