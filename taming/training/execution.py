"""How a training runs fastest on the machine at hand: precision, memory format, compilation.

It depends on processor and model. On one processor with AMX, bfloat16 made a transformer 512 wide
1.8 times as fast and one 128 wide 1.4 times as slow, and channels_last halved the speed of a narrow
VQGAN. So each way that is left to `auto` is timed on the model itself, where a training is long.
"""

import gc
import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from taming.losses import FrozenNetwork
from taming.runtime.hardware import can_compile, device_name, has_bf16
from taming.training.module import Switch, TrainingModule

__all__ = ["Execution", "choose_execution", "default_precision"]

log = logging.getLogger("taming")

TIMED_FROM = 500  # batches
TIMED_SECONDS = 2.0  # of each way, which is at least one step
EAGER_FROM = 300.0  # seconds of training, to try another precision or memory format
COMPILED_FROM = 1800.0  # seconds of training: compiling to try it takes one to four minutes
WORTHWHILE = 1.1  # times as fast: the rest may be noise
AUTOCAST = {  # of the precisions that are timed
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}


@dataclass(frozen=True)
class Execution:
    """How the steps of a training are computed; `"auto"` for what is still to be chosen.

    Attributes:
        precision: as Lightning's `Trainer.precision` says it.
        channels_last: whether images and weights lie channel by channel in memory.
        compile: whether the networks are compiled by `torch.compile`.
    """

    precision: str
    channels_last: Switch
    compile: Switch


def choose_execution(
    wanted: Execution,
    module: TrainingModule,
    load_batch: Callable[[], dict[str, torch.Tensor]],
    device: torch.device,
    *,
    num_batches: int,
    world_size: int,
) -> Execution:
    """Replaces each `"auto"`, and logs the choice in one line.

    | setting       | without timing                                     | also tried, if long  |
    |---------------|----------------------------------------------------|-----------------------|
    | precision     | a GPU that has bfloat16: bf16-mixed; an older one  | bf16-mixed, on a      |
    |               | with tensor cores: 16-mixed; all others: 32-true   | processor that has it |
    | channels_last | on GPUs                                            | the other way         |
    | compile       | no                                                 | yes                   |

    Other ways are tried where the training would take five minutes or more, and compiling where it
    would take half an hour. Trainings of fewer than 500 batches are not timed, and those in several
    processes, which would have to agree, are not either. The module stays as it is.
    """
    chosen = Execution(
        default_precision(device) if wanted.precision == "auto" else wanted.precision,
        device.type == "cuda" if wanted.channels_last == "auto" else wanted.channels_last,
        wanted.compile is True,
    )
    changes: list[tuple[float, dict[str, Any]]] = []  # from so many seconds of training on
    if wanted.precision == "auto" and device.type == "cpu" and has_bf16(device):
        changes.append((EAGER_FROM, {"precision": "bf16-mixed"}))
    if wanted.channels_last == "auto":
        changes.append((EAGER_FROM, {"channels_last": not chosen.channels_last}))
    if wanted.compile == "auto" and can_compile(device):
        changes.append((COMPILED_FROM, {"compile": True}))
    times: dict[Execution, float] = {}
    is_long = num_batches >= TIMED_FROM and world_size == 1
    if changes and is_long and chosen.precision in AUTOCAST:
        log.info("timing a few batches")
        batch = {name: tensor.to(device) for name, tensor in load_batch().items()}
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            times[chosen] = seconds_per_batch(deepcopy(module), batch, device, chosen)
            for least, change in changes:
                if times[chosen] * num_batches < least:
                    continue
                way = replace(chosen, **change)
                times[way] = seconds_per_batch(deepcopy(module), batch, device, way)
                if times[way] * WORTHWHILE < times[chosen]:
                    chosen = way
        gc.collect()  # compiled networks are in reference cycles, and large
    timed = "; ".join(f"{_words(way)} {seconds:.3g}" for way, seconds in times.items())
    duration = ""
    if times:
        total = timedelta(seconds=round(times[chosen] * num_batches))
        duration = f" (seconds a batch: {timed}), about {total} in all"
    log.info("%s: %s%s", device_name(device), _words(chosen), duration)
    return chosen


def default_precision(device: torch.device) -> str:
    """Returns what is right for a device where nothing is timed."""
    if device.type != "cuda":
        return "32-true"
    if has_bf16(device):
        return "bf16-mixed"
    return "16-mixed" if torch.cuda.get_device_capability(device) >= (7, 0) else "32-true"


def seconds_per_batch(
    module: TrainingModule, batch: dict[str, torch.Tensor], device: torch.device, way: Execution
) -> float:
    """Returns the least time of forward and backward pass; infinity if compiling fails.

    The step is one with all networks; the module, a deep copy, is used up.
    """
    from torch.utils.benchmark import Timer  # slow to import

    for part in module.modules():
        if isinstance(part, FrozenNetwork):
            part.copy_network()  # the original's stays where it is
    if (adversary := getattr(module, "adversary", None)) is not None:
        adversary.start = adversary.warmup = 0
    module.settle(channels_last=way.channels_last, compile=way.compile)
    dtype = AUTOCAST[way.precision]
    if way.compile:
        log.info("compiling a step to time it, for a minute to four")

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
        if not way.compile:
            raise
        log.warning("compiling failed, so nothing is compiled: %s", str(error).splitlines()[0])
        return float("inf")
    finally:
        if way.compile:
            torch.compiler.reset()


def _words(way: Execution) -> str:
    """Describes an execution in a few words."""
    compiled = ", compiled" if way.compile else ""
    return f"{way.precision}{', channels_last' if way.channels_last else ''}{compiled}"
