"""Chooses the fastest way to compute a step: precision, memory format and compilation.

The fastest way depends on the processor and the model. On one processor with AMX, bfloat16 made a
transformer 512 wide 1.8 times as fast and one 128 wide 1.4 times as slow, and channels_last halved
the speed of a narrow VQGAN. A long training therefore times each candidate on its own model.
"""

import gc
import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_only

from taming.losses import FrozenNetwork
from taming.runtime.hardware import can_compile, device_name, has_bf16
from taming.training.module import TrainingModule

__all__ = ["Execution", "Precision", "choose_execution", "default_precision",
    "supported_precision"]  # fmt: skip

log = logging.getLogger("taming")
warn = rank_zero_only(log.warning)

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"]
"""Lightning's precisions whose weights have at least float32, and `"auto"`.

Its others, such as `bf16-true`, also convert the sums in metrics and moving averages, which then
lose small terms.
"""

TIMED_FROM = 500  # batches
TIMED_SECONDS = 2.0  # per candidate, and at least one step
EAGER_FROM = 300.0  # seconds of training that justify timing a precision or memory format
COMPILED_FROM = 1800.0  # seconds of training that justify compiling, which takes 1 to 4 minutes
WORTHWHILE = 1.1  # smaller speed-ups may be noise
AUTOCAST = {  # the precisions that can be timed
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}


@dataclass(frozen=True)
class Execution:
    """How the steps of a training run are computed."""

    precision: str  # as in Lightning's `Trainer`
    channels_last: bool  # the memory format of images and weights
    compile: bool  # the networks, with `torch.compile`

    def __str__(self) -> str:
        compiled = ", compiled" if self.compile else ""
        return f"{self.precision}{', channels_last' if self.channels_last else ''}{compiled}"


def choose_execution(
    precision: str,
    module: TrainingModule,
    load_batch: Callable[[], dict[str, torch.Tensor]],
    device: torch.device,
    *,
    num_batches: int,
    num_processes: int = 1,
) -> Execution:
    """Replaces each `"auto"`, applies the choice to the module, and logs it.

    | setting       | default                                          | also timed             |
    |---------------|--------------------------------------------------|------------------------|
    | precision     | GPU with bfloat16: bf16-mixed; older GPU with    | bf16-mixed on CPUs     |
    |               | tensor cores: 16-mixed; otherwise 32-true        | with bfloat16          |
    | channels_last | on GPUs                                          | the opposite           |
    | compile       | no                                               | yes                    |

    Alternatives are timed if the run takes at least five minutes, and compilation if it takes
    at least half an hour. Runs of fewer than 500 batches are not timed. Several processes
    would have to agree, so they are not timed either. Timing uses copies of the module, and the
    batch of `load_batch`.
    """
    choice = Execution(
        default_precision(device) if precision == "auto" else precision,
        device.type == "cuda" if module.channels_last == "auto" else module.channels_last,
        module.compiled is True,
    )
    changes: list[tuple[float, dict[str, Any]]] = []  # and how long a training justifies each
    if precision == "auto" and device.type == "cpu" and has_bf16(device):
        changes.append((EAGER_FROM, {"precision": "bf16-mixed"}))
    if module.channels_last == "auto":
        changes.append((EAGER_FROM, {"channels_last": not choice.channels_last}))
    if module.compiled == "auto" and can_compile(device):
        changes.append((COMPILED_FROM, {"compile": True}))
    times: dict[Execution, float] = {}
    is_long = num_batches >= TIMED_FROM and num_processes == 1
    if changes and is_long and choice.precision in AUTOCAST:
        log.info("timing a few batches")
        batch = {name: tensor.to(device) for name, tensor in load_batch().items()}
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            times[choice] = seconds_per_batch(deepcopy(module), batch, device, choice)
            for min_seconds, change in changes:
                if times[choice] * num_batches < min_seconds:
                    continue
                candidate = replace(choice, **change)
                times[candidate] = seconds_per_batch(deepcopy(module), batch, device, candidate)
                if times[candidate] * WORTHWHILE < times[choice]:
                    choice = candidate
        gc.collect()  # compiled networks are in reference cycles, and large
    measurements = ""
    if times:
        total = timedelta(seconds=round(times[choice] * num_batches))
        seconds = "; ".join(f"{candidate} {time:.3g}" for candidate, time in times.items())
        measurements = f" (seconds per batch: {seconds}), about {total} in all"
    log.info("%s: %s%s", device_name(device), choice, measurements)
    module.set_execution(channels_last=choice.channels_last, compile=choice.compile)
    return choice


def default_precision(device: torch.device) -> str:
    """Returns the precision that suits a device if nothing is timed."""
    if device.type != "cuda":
        return "32-true"
    if has_bf16(device):
        return "bf16-mixed"
    return "16-mixed" if torch.cuda.get_device_capability(device) >= (7, 0) else "32-true"


def supported_precision(precision: str, device: torch.device) -> str:
    """Returns the precision, or one that the device has; warns if the device only emulates it."""
    if precision == "16-mixed" and device.type == "cpu":
        warn("trainer.precision=16-mixed needs a GPU. The CPU uses bf16-mixed instead.")
        precision = "bf16-mixed"
    if precision.startswith("bf16") and not has_bf16(device):
        warn(
            "%s has no bfloat16 arithmetic and emulates it, so steps take 10 to 20 times as long. "
            "Use trainer.precision=auto.",
            device_name(device),
        )
    return precision


def seconds_per_batch(
    module: TrainingModule,
    batch: dict[str, torch.Tensor],
    device: torch.device,
    execution: Execution,
) -> float:
    """Returns the shortest time of a step of all networks; infinity if compiling fails.

    The module must be a copy, because timing changes it.
    """
    from torch.utils.benchmark import Timer  # slow to import

    for part in module.modules():
        if isinstance(part, FrozenNetwork):
            part.copy_network()  # a deep copy shares it
    if (adversary := getattr(module, "adversary", None)) is not None:
        adversary.start = adversary.warmup = 0
    module.set_execution(channels_last=execution.channels_last, compile=execution.compile)
    dtype = AUTOCAST[execution.precision]
    if execution.compile:
        log.info("compiling a step to time it, which takes one to four minutes")

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss: Any = module.training_step(batch, 0)
        loss["loss"].backward()
        module.zero_grad()

    try:
        module.to(device).train().setup("fit")
        step()  # compiles, and initialises a codebook from data
        timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
        return min(timer.blocked_autorange(min_run_time=TIMED_SECONDS).times)
    except RuntimeError as error:
        if not execution.compile:
            raise
        log.warning("compiling failed, so nothing is compiled: %s", str(error).splitlines()[0])
        return float("inf")
    finally:
        if execution.compile:
            torch.compiler.reset()
