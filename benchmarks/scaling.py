"""Estimates what gradients cost on 8, 64 and 512 GPUs: bytes and time beside those of a step.

    python -m benchmarks.scaling

Parameters and operations are counted from the models themselves (stage 1 takes half a minute);
the rest is assumed: change the numbers below to those of your machines.
"""

from dataclasses import dataclass

import torch

from benchmarks import autoencoder, ours, transformer
from benchmarks.peers.serve import count_flops
from benchmarks.table import aligned
from taming.conditioning import Unconditional
from taming.transformer import GPT, GPTConfig

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


def stage_1() -> Step:
    """The paper's f16 model at 256×256, with LPIPS and the discriminator."""
    settings = {**autoencoder.F16, "compile": False, "channels_last": False, "auto": False}
    settings |= {"device": "cpu", "dtype": "float32"}
    images = torch.rand(1, 3, 256, 256) * 2 - 1
    call, facts = ours.build(settings, "step", images)
    parameters = facts["parameters"]
    trained = parameters["autoencoder"] + parameters["discriminator"]
    return Step(16, trained, 16 * count_flops(call))


def stage_2(layers: int, width: int, images: int) -> Step:
    """A GPT over 256 tokens of 16,384 codes; a product is 2 operations, and backward 2 more each."""
    tokens = 256
    conditioning = Unconditional()
    shape = {"num_layers": layers, "num_heads": 16, "embed_dim": width, "codebook_size": 16384}
    with torch.device("meta"):
        gpt = GPT(GPTConfig(**shape, **conditioning.transformer_config((16, 16))))
    parameters = sum(p.numel() for p in gpt.parameters())
    multiplied = parameters - gpt.token_embedding.weight.numel()
    attention = layers * tokens * width  # keys and values of half the positions before, on average
    return Step(images, parameters, 6.0 * images * tokens * (multiplied + attention))


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
    steps = {
        "stage 1, f16": stage_1(),
        "stage 2, 343M": stage_2(24, 1024, 64),
        "stage 2, 1.4B": stage_2(48, 1536, 16),
    }
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
