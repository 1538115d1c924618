"""This program's side of the benchmark."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import nn

import taming
from taming.losses import FrozenNetwork
from taming.workflows.benchmark.cases import BenchmarkCase
from taming.workflows.benchmark.peers.serve import Built, Session, Settings, autocast

__all__ = ["OurSide"]

NEVER = 10**9  # a step that is not reached


class OurSide(Session):
    """Times `VQGANTraining.training_step`, and a VQGAN's `encode` and `decode`.

    The step is the one of training: losses, both optimizers, clearing of gradients, learning rates,
    sums of what is logged. Only the trainer around it is absent, as it is on the other side: its
    two services, the optimizers and the call to `backward`, are given to the module directly.

    Args:
        make_training: makes the stage-1 `VQGANTraining` of a case, with the step at which the
            discriminator starts, None for neither discriminator nor perceptual loss.
        channels_last: whether images are given in that memory format.
    """

    def __init__(
        self,
        make_training: Callable[[BenchmarkCase, int | None], Any],
        *,
        channels_last: bool = False,
    ) -> None:
        def build(settings: Settings, measurement: str, images: torch.Tensor) -> Built:
            case = BenchmarkCase(**{f.name: settings[f.name] for f in fields(BenchmarkCase)})
            start = {"step": 0, "step_before_start": NEVER}.get(measurement)
            module = make_training(case, start).to(images.device)
            facts = {
                "versions": {"taming": taming.__version__},
                "parameters": count_parameters(module),
            }
            if channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            if measurement.endswith("step") or measurement == "step_before_start":
                return _training_step(module, settings, images), facts
            return _inference(module.vqgan.eval(), settings, images, measurement), facts

        super().__init__(build)


def count_parameters(module: Any) -> dict[str, int]:
    """Numbers of weights of a `VQGANTraining`'s parts, the frozen network's included."""
    parts = {"autoencoder": list(module.vqgan.parameters())}
    if module.adversary is not None:
        parts["discriminator"] = list(module.adversary.discriminator.parameters())
    if module.perceptual is not None:
        frozen = [m for m in module.perceptual.modules() if isinstance(m, FrozenNetwork)]
        parts["perceptual"] = [p for m in frozen for p in m.network.parameters()]
    return {name: sum(p.numel() for p in part) for name, part in parts.items()}


def _training_step(
    module: Any, settings: Settings, images: torch.Tensor
) -> Callable[[], torch.Tensor]:
    optimizers = module.configure_optimizers()
    module.manual_backward = lambda loss: module.backward(loss)
    module.optimizers = lambda: optimizers
    module.log_every = NEVER
    module.step = 1  # the first step is logged in any case
    module.train()
    batch = {"images": images}

    def step() -> torch.Tensor:
        with autocast(settings):
            module.training_step(batch, 0)
        return module.vqgan.last_layer.detach()

    return step


def _inference(
    vqgan: nn.Module, settings: Settings, images: torch.Tensor, measurement: str
) -> Callable[[], torch.Tensor]:
    assert isinstance(vqgan, taming.VQGAN)

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
