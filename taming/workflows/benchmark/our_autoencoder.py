"""This program's stage 1 in the benchmark."""

from collections.abc import Callable
from typing import Any

import torch

from taming.losses import FrozenNetwork
from taming.vqgan import VQGAN
from taming.workflows.benchmark.cases import AutoencoderCase
from taming.workflows.benchmark.ours import NEVER, OurBuild, training_step
from taming.workflows.benchmark.peers.serve import Built, Settings, autocast

__all__ = ["autoencoder_build", "count_autoencoder_parameters"]


def autoencoder_build(
    make_training: Callable[[AutoencoderCase, int | None], Any], *, channels_last: bool = False
) -> OurBuild:
    """Times `VQGANTraining.training_step`, and a VQGAN's `encode` and `decode`.

    Args:
        make_training: makes the `VQGANTraining` of a case, with the step at which the discriminator
            starts, None for neither discriminator nor perceptual loss.
        channels_last: whether images are given in that memory format.
    """

    def build(
        case: AutoencoderCase, settings: Settings, measurement: str, images: torch.Tensor
    ) -> Built:
        start = {"step": 0, "step_before_start": NEVER}.get(measurement)
        module = make_training(case, start).to(images.device)
        facts = {"parameters": count_autoencoder_parameters(module)}
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if measurement in ("encode", "decode"):
            return _inference(module.vqgan.eval(), settings, images, measurement), facts
        last_layer = module.vqgan.last_layer
        return training_step(module, settings, {"images": images}, last_layer), facts

    return build


def count_autoencoder_parameters(module: Any) -> dict[str, int]:
    """Numbers of weights of a `VQGANTraining`'s parts, the frozen network's included."""
    parts = {"autoencoder": list(module.vqgan.parameters())}
    if module.adversary is not None:
        parts["discriminator"] = list(module.adversary.discriminator.parameters())
    if module.perceptual is not None:
        frozen = [m for m in module.perceptual.modules() if isinstance(m, FrozenNetwork)]
        parts["perceptual"] = [p for m in frozen for p in m.network.parameters()]
    return {name: sum(p.numel() for p in part) for name, part in parts.items()}


def _inference(
    vqgan: VQGAN, settings: Settings, images: torch.Tensor, measurement: str
) -> Callable[[], torch.Tensor]:
    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return vqgan.encode(images)

    if measurement == "encode":
        return encode
    indices = encode()

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return vqgan.decode(indices)

    return decode
