"""Estimates what gradients cost on 8, 64 and 512 GPUs: bytes and time beside those of a step.

    python -m benchmarks.scaling

Parameters and operations are counted from the models themselves; the rest is assumed: change the
numbers below to those of your machines.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import vgg16

from benchmarks import autoencoder
from benchmarks.table import aligned
from taming.conditioning import Unconditional
from taming.discriminators import PatchDiscriminator
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

AUTOENCODER = ("resolution", "base_channels", "channel_multipliers", "num_residual_blocks",
    "attention_resolutions", "latent_channels")  # fmt: skip
PEAK = 989e12  # operations a second in bf16: an H100's
UTILISATION = 0.35  # share of the peak that a step reaches
INSIDE = 450e9  # bytes a second and direction between the 8 GPUs of a machine: NVLink 4
NETWORKS = {"400 Gb/s a GPU": 50e9, "100 Gb/s a machine": 12.5e9 / 8}  # bytes a second and GPU
REACHED = 0.7  # share of these that collectives reach
BACKWARD = 2 / 3  # share of the step in which gradients are sent as they come
PER_MACHINE = 8


@dataclass
class Step:
    """A step of a GPU: its images, trained parameters, and operations."""

    images: int
    parameters: int
    flops: float

    @property
    def seconds(self) -> float:
        return self.flops / (PEAK * UTILISATION)


def stage_1(images: int) -> Step:
    """The paper's f16 model at 256×256, with LPIPS and the discriminator.

    Gradients take twice the operations of the forward pass, of an input alone as many. LPIPS sees
    images and reconstructions; the discriminator these for the generator, and both for itself.
    """
    quantizer = {"kind": "vector", "codebook_size": 1024, "codebook_dim": 256}
    shape = {name: autoencoder.F16[name] for name in AUTOENCODER}
    vqgan = VQGAN(quantizer=quantizer, **shape)
    discriminator, vgg = PatchDiscriminator(norm="batch"), vgg16().features
    images_in, indices = torch.empty(1, 3, 256, 256), torch.zeros(1, 16, 16, dtype=torch.int64)
    encoded, decoded = forward(vqgan.encode_latents, images_in), forward(vqgan.decode, indices)
    seen, judged = forward(vgg, images_in), forward(discriminator, images_in)
    trained = [*vqgan.parameters(), *discriminator.parameters()]
    parameters = sum(p.numel() for p in trained)
    return Step(images, parameters, images * (3 * (encoded + decoded + seen) + 8 * judged))


def stage_2(layers: int, width: int, images: int) -> Step:
    """A GPT over 256 tokens of 16,384 codes."""
    conditioning = Unconditional()
    shape = {"num_layers": layers, "num_heads": 16, "embed_dim": width, "codebook_size": 16384}
    gpt = GPT(GPTConfig(**shape, **conditioning.transformer_config((16, 16))))
    prefix, tokens = (torch.zeros(1, n, dtype=torch.int64) for n in (1, 255))
    parameters = sum(p.numel() for p in gpt.parameters())
    return Step(images, parameters, 3 * images * forward(gpt, prefix, tokens))


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
    steps = {"stage 1, f16": stage_1(16)}
    with torch.device("meta"):  # shapes without numbers
        steps |= {"stage 2, 343M": stage_2(24, 1024, 64), "stage 2, 1.4B": stage_2(48, 1536, 16)}
    rows = []
    for name, step in steps.items():
        for gpus in (8, 64, 512):
            sent = 4 * step.parameters  # float32 gradients; FSDP in bf16 moves half of it
            row = {
                "": name,
                "parameters": f"{step.parameters / 1e6:.0f}M",
                "images a GPU": f"{step.images}",
                "GPUs": f"{gpus}",
                "step": f"{step.seconds * 1e3:.0f} ms",
                "gradients": f"{sent / 1e9:.2f} GB",
            }
            for network, speed in NETWORKS.items():
                between, seconds = exchange(sent, gpus, speed)
                waits = max(0.0, seconds - BACKWARD * step.seconds)
                row["over the network"] = f"{between / 1e9:.2f} GB"
                row[network] = f"{seconds * 1e3:.0f} ms"
                row[f"efficiency, {network}"] = (
                    f"{step.seconds / (step.seconds + waits):.0%} "
                    f"({step.seconds / (step.seconds + seconds):.0%})"
                )
            rows.append(row)
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
