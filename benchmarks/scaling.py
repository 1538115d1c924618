"""Estimates what the exchange of gradients costs on 8, 64 and 512 GPUs, in bytes and in time.

    python -m benchmarks.scaling

The script counts parameters and operations from the models. The constants below are assumptions:
change them to match your machines.
"""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import vgg16

from benchmarks import autoencoder, transformer
from benchmarks.table import aligned
from taming.conditioning import Unconditional
from taming.discriminators import PatchDiscriminator
from taming.tokenizer import VQGAN
from taming.transformer import GPT, GPTConfig

PEAK = 989e12  # operations per second of an H100 in bf16
UTILISATION = 0.35  # share of the peak that a step reaches
INSIDE = 450e9  # bytes per second and direction between the 8 GPUs of a machine: NVLink 4
NETWORKS = {"400 Gb/s a GPU": 50e9, "100 Gb/s a machine": 12.5e9 / 8}  # bytes per second and GPU
BANDWIDTH_SHARE = 0.7  # share of these bandwidths that collectives reach
BACKWARD = 2 / 3  # share of the step during which gradients can be sent
PER_MACHINE = 8


def stage_1() -> tuple[int, int]:
    """Returns the parameters, and the operations per image, of the paper's f16 model with LPIPS.

    A backward pass costs two forward passes, or one if only the input needs a gradient. LPIPS sees
    images and reconstructions. The discriminator sees reconstructions for the generator's loss,
    and both for its own loss.
    """
    quantizer = {"kind": "vector", "codebook_size": 1024, "codebook_dim": 256}
    vqgan = VQGAN(quantizer=quantizer, **autoencoder.NETWORK)
    discriminator, vgg = PatchDiscriminator(norm="batch"), vgg16().features
    images, indices = torch.empty(1, 3, 256, 256), torch.zeros(1, 16, 16, dtype=torch.int64)
    autoencoded = forward(vqgan.encode_latents, images) + forward(vqgan.decode, indices)
    perceptual, discriminated = forward(vgg, images), forward(discriminator, images)
    parameters = [*vqgan.parameters(), *discriminator.parameters()]
    flops = 3 * (autoencoded + perceptual) + 8 * discriminated
    return sum(p.numel() for p in parameters), flops


def stage_2(**network: int) -> tuple[int, int]:
    """Returns the parameters, and the operations per image, of a GPT (256 tokens, 16,384 codes)."""
    shape = {name: transformer.LARGE[name] for name in transformer.NETWORK} | network
    gpt = GPT(GPTConfig(**shape, **Unconditional().transformer_config((16, 16))))
    prefix, tokens = (torch.zeros(1, n, dtype=torch.int64) for n in (1, 255))
    return sum(p.numel() for p in gpt.parameters()), 3 * forward(gpt, prefix, tokens)


def forward(function: Callable[..., object], *inputs: torch.Tensor) -> int:
    """Counts the operations of a call without gradients."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        function(*inputs)
    return counter.get_total_flops()


def exchange(num_bytes: float, gpus: int, network: float) -> tuple[float, float]:
    """Returns the bytes that a GPU sends over the network, and the seconds of the exchange.

    The exchange is an all-reduce of `num_bytes`. It sums within each machine, then each GPU sums
    its share between the machines, then each machine distributes the sums.
    """
    machines = gpus // PER_MACHINE
    inside = 2 * (PER_MACHINE - 1) / PER_MACHINE * num_bytes
    between = 2 * (machines - 1) / machines * num_bytes / PER_MACHINE
    return between, inside / (INSIDE * BANDWIDTH_SHARE) + between / (network * BANDWIDTH_SHARE)


def main() -> None:
    """Prints the table."""
    models = {"stage 1, f16": (16, *stage_1())}  # images per GPU, parameters, operations
    with torch.device("meta"):  # shapes without numbers
        models["stage 2, 343M"] = 64, *stage_2()
        models["stage 2, 1.4B"] = 16, *stage_2(num_layers=48, embed_dim=1536)
    rows = []
    for name, (images, parameters, flops) in models.items():
        step = images * flops / (PEAK * UTILISATION)  # seconds
        gradient_bytes = 4 * parameters  # float32; FSDP in bf16 moves half of it
        for gpus in (8, 64, 512):
            row = {
                "": name,
                "parameters": f"{parameters / 1e6:.0f}M",
                "images a GPU": f"{images}",
                "GPUs": f"{gpus}",
                "step": f"{step * 1e3:.0f} ms",
                "gradients": f"{gradient_bytes / 1e9:.2f} GB",
            }
            for network, speed in NETWORKS.items():
                between, seconds = exchange(gradient_bytes, gpus, speed)
                exposed = max(0.0, seconds - BACKWARD * step)  # not hidden behind the step
                row["over the network"] = f"{between / 1e9:.2f} GB"
                row[network] = f"{seconds * 1e3:.0f} ms"
                shares = (step / (step + delay) for delay in (exposed, seconds))
                row[f"efficiency, {network}"] = "{:.0%} ({:.0%})".format(*shares)
            rows.append(row)
    print(aligned(rows))


if __name__ == "__main__":
    main()
