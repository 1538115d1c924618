"""This program's side of the benchmark."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

import taming
from taming.workflows.benchmark.cases import BenchmarkCase, case_of
from taming.workflows.benchmark.peers.serve import Built, Session, Settings, autocast

__all__ = ["NEVER", "OurBuild", "OurSide", "training_step"]

NEVER = 10**9  # a step that is not reached

OurBuild = Callable[[Any, Settings, str, torch.Tensor], Built]
"""Case, settings, measurement and inputs to what is timed, and facts about it."""


class OurSide(Session):
    """Times this program.

    Args:
        builds: what makes the calls that are timed, by kind of case.
    """

    def __init__(self, builds: Mapping[str, OurBuild]) -> None:
        def build(settings: Settings, measurement: str, inputs: torch.Tensor) -> Built:
            case: BenchmarkCase = case_of(settings)
            call, facts = builds[case.KIND](case, settings, measurement, inputs)
            return call, {"versions": {"taming": taming.__version__}, **facts}

        super().__init__(build)


def training_step(
    module: Any, settings: Settings, batch: dict[str, torch.Tensor], result: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """A `TrainingModule`'s step as it is in training, on the same batch each time.

    Losses, optimizers, clearing of gradients, learning rates, sums of what is logged: all that is
    in `training_step`. Only the trainer around it is absent, as it is on the other side: its two
    services, the optimizers and the call to `backward`, are given to the module directly.

    Args:
        module: on its device.
        settings: of the side.
        batch: likewise.
        result: weights that are looked at for NaN afterwards.
    """
    optimizers = module.configure_optimizers()
    module.manual_backward = lambda loss: module.backward(loss)
    module.optimizers = lambda: optimizers
    module.log_every = NEVER
    module.step = 1  # the first step is logged in any case
    module.train()

    def step() -> torch.Tensor:
        with autocast(settings):
            module.training_step(batch, 0)
        return result.detach()

    return step
