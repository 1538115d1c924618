"""Estimates what gradients cost on 8, 64 and 512 GPUs: bytes and time beside those of a step.

    python -m benchmarks.scaling

Parameters and operations are counted from the models themselves; the rest is assumed: change the
numbers below to those of your machines.
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

PEAK = 989e12  # operations a second in bf16: an H100's
UTILISATION = 0.35  # share of the peak that a step reaches
INSIDE = 450e9  # bytes a second and direction between the 8 GPUs of a machine: NVLink 4
NETWORKS = {"400 Gb/s a GPU": 50e9, "100 Gb/s a machine": 12.5e9 / 8}  # bytes a second and GPU
REACHED = 0.7  # share of these that collectives reach
BACKWARD = 2 / 3  # share of the step in which gradients are sent as they come
PER_MACHINE = 8


def stage_1() -> tuple[int, int]:
    """Returns parameters, and operations an image, of the paper's f16 model with LPIPS.

    Gradients take twice the operations of the forward pass, of an input alone as many. LPIPS sees
    images and reconstructions; the discriminator these for the generator, and both for itself.
    """
    quantizer = {"kind": "vector", "codebook_size": 1024, "codebook_dim": 256}
    vqgan = VQGAN(quantizer=quantizer, **autoencoder.NETWORK)
    discriminator, vgg = PatchDiscriminator(norm="batch"), vgg16().features
    images, indices = torch.empty(1, 3, 256, 256), torch.zeros(1, 16, 16, dtype=torch.int64)
    autoencoded = forward(vqgan.encode_latents, images) + forward(vqgan.decode, indices)
    seen, judged = forward(vgg, images), forward(discriminator, images)
    trained = [*vqgan.parameters(), *discriminator.parameters()]
    return sum(p.numel() for p in trained), 3 * (autoencoded + seen) + 8 * judged


def stage_2(**network: int) -> tuple[int, int]:
    """Returns parameters, and operations an image, of a GPT over 256 tokens of 16,384 codes."""
    shape = {name: transformer.LARGE[name] for name in transformer.NETWORK} | network
    gpt = GPT(GPTConfig(**shape, **Unconditional().transformer_config((16, 16))))
    prefix, tokens = (torch.zeros(1, n, dtype=torch.int64) for n in (1, 255))
    return sum(p.numel() for p in gpt.parameters()), 3 * forward(gpt, prefix, tokens)


def forward(function: Callable[..., object], *inputs: torch.Tensor) -> int:
    """Returns the operations of a call without gradients."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        function(*inputs)
    return counter.get_total_flops()


def exchange(sent: float, gpus: int, network: float) -> tuple[float, float]:
    """Returns the bytes that a GPU sends over the network, and the seconds of the exchange.

    All-reduce of `sent` bytes: summed within a machine first, each GPU then its share between the
    machines, and the sums handed round within the machine.
    """
    machines = gpus // PER_MACHINE
    inside = 2 * (PER_MACHINE - 1) / PER_MACHINE * sent
    between = 2 * (machines - 1) / machines * sent / PER_MACHINE
    return between, inside / (INSIDE * REACHED) + between / (network * REACHED)


def main() -> None:
    """Prints the table."""
    models = {"stage 1, f16": (16, *stage_1())}  # images a GPU, parameters and operations
    with torch.device("meta"):  # shapes without numbers
        models["stage 2, 343M"] = 64, *stage_2()
        models["stage 2, 1.4B"] = 16, *stage_2(num_layers=48, embed_dim=1536)
    rows = []
    for name, (images, parameters, flops) in models.items():
        step = images * flops / (PEAK * UTILISATION)  # seconds
        sent = 4 * parameters  # float32 gradients; FSDP in bf16 moves half of it
        for gpus in (8, 64, 512):
            row = {
                "": name,
                "parameters": f"{parameters / 1e6:.0f}M",
                "images a GPU": f"{images}",
                "GPUs": f"{gpus}",
                "step": f"{step * 1e3:.0f} ms",
                "gradients": f"{sent / 1e9:.2f} GB",
            }
            for network, speed in NETWORKS.items():
                between, seconds = exchange(sent, gpus, speed)
                waits = max(0.0, seconds - BACKWARD * step)
                row["over the network"] = f"{between / 1e9:.2f} GB"
                row[network] = f"{seconds * 1e3:.0f} ms"
                shares = (step / (step + lost) for lost in (waits, seconds))
                row[f"efficiency, {network}"] = "{:.0%} ({:.0%})".format(*shares)
            rows.append(row)
    print(aligned(rows))


if __name__ == "__main__":
    main()
