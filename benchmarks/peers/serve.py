"""Builds and times the measurements of one program; imports nothing of this project.

Each program in a comparison is a process `python serve.py BUILD.py`. It reads lines of JSON with
the name of a method of `Session` and its arguments, and answers each with a line of JSON:

    ["start", {"measurement": "encode", …}]  ->  {"result": {…}}, or null if it has no such thing
    ["run", 10]  ->  {"result": {"seconds": 0.8, "peak_memory_gib": 0.0}}

An error gives {"error": "…"}. `BUILD.py` defines `build(settings, measurement, inputs)`. It returns
None if the program does not have the measurement. Otherwise it returns the call to time and a
dictionary of facts about the program, with `versions` and `parameters`. The call returns a tensor
whose values show that it worked.
"""

import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Settings = dict[str, Any]
Call = Callable[[], torch.Tensor]
Build = Callable[[Settings, str, torch.Tensor], tuple[Call, dict[str, Any]] | None]


class Session:
    """Times the calls that `build` returns, one measurement after the other."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.call: Call | None = None

    def start(self, settings: Settings) -> dict[str, Any] | None:
        """Builds a measurement and returns facts about it; None if the program does not have it."""
        self.call = None
        gc.collect()
        self.device = torch.device(settings["device"])
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu:
            torch.cuda.empty_cache()
        torch.set_num_threads(settings["threads"])
        precision = "high" if settings["dtype"] == "bf16" else "highest"
        torch.set_float32_matmul_precision(precision)  # convolutions: PyTorch's default, TF32
        torch.manual_seed(0)
        inputs = random_inputs(settings).to(self.device)
        if (built := self.build(settings, settings["measurement"], inputs)) is None:
            return None
        self.call, facts = built
        return facts | {"versions": {"torch": torch.__version__, **facts["versions"]}}

    def run(self, steps: int) -> dict[str, Any]:
        """Runs `steps` calls and returns their total seconds and the peak memory.

        Raises:
            FloatingPointError: if the result is not finite, so that its time means nothing.
        """
        assert self.call is not None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        for _ in range(steps):
            result = self.call()
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - started
        if not bool(result.isfinite().all()):
            raise FloatingPointError("the result is NaN or infinite")
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.on_gpu else 0.0
        return {"seconds": seconds, "peak_memory_gib": peak}

    def flops(self) -> int:
        """Counts the operations of a call; see `count_flops`."""
        assert self.call is not None
        return count_flops(self.call)

    def profile(self, path: str) -> str:
        """Writes a trace of two calls to `path` and returns a table of the slowest operations."""
        from torch.profiler import ProfilerActivity, profile

        assert self.call is not None
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu
        self.run(1)
        with profile(activities=activities) as profiler:
            self.run(2)
        profiler.export_chrome_trace(path)
        order = "self_cuda_time_total" if self.on_gpu else "self_cpu_time_total"
        averages = profiler.key_averages()
        return averages.table(sort_by=order, row_limit=25, max_name_column_width=70)


def random_inputs(settings: Settings) -> torch.Tensor:
    """Draws images `(b 3 H W)` in [-1, 1] or tokens `(b n)`, always with the same seed."""
    generator = torch.Generator().manual_seed(0)
    b = settings["batch_size"]
    if "num_tokens" in settings:
        shape = (b, settings["num_tokens"])
        return torch.randint(settings["codebook_size"], shape, generator=generator)
    size = settings["resolution"]
    return torch.rand(b, 3, size, size, generator=generator) * 2 - 1


def count_flops(call: Callable[[], object]) -> int:
    """Counts the matrix products, convolutions and attention of a call with PyTorch's formulas.

    The count includes backward passes. Compiled parts run uncompiled. Causal attention counts like
    full attention, as usual (Chowdhery et al. 2022, "PaLM", appendix B).
    """
    # FlopCounterMode itself also hooks into modules. The hooks fail in our step, which takes the
    # gradient of a leaf. The inner mode only counts.
    from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.compiler.set_stance("force_eager"), _FlopCounterMode(counter):
        call()
    return counter.get_total_flops()


# functions for build files


def autocast(settings: Settings) -> torch.autocast:
    """Builds a context for the `dtype` of the settings: `"float32"` or `"bf16"` (mixed)."""
    device = torch.device(settings["device"])
    return torch.autocast(device.type, torch.bfloat16, enabled=settings["dtype"] == "bf16")


def inference(settings: Settings, call: Call) -> Call:
    """Wraps a call in inference mode and autocast."""

    def wrapped_call() -> torch.Tensor:
        with torch.inference_mode(), autocast(settings):
            return call()

    return wrapped_call


def training_step(settings: Settings, loss: Call, optimizer: torch.optim.Optimizer) -> Call:
    """Builds a step: the loss under autocast, its gradients, and an update of the weights."""

    def step() -> torch.Tensor:
        with autocast(settings):
            value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    return step


def num_parameters(**parts: list[Any]) -> dict[str, int]:
    """Counts the parameters of each part; a part is a list of modules and parameters."""
    return {
        name: sum(
            p.numel() for x in part for p in (x.parameters() if isinstance(x, nn.Module) else [x])
        )
        for name, part in parts.items()
    }


def main() -> None:
    """Answers requests until the input ends."""
    sys.modules["serve"] = sys.modules["__main__"]  # build files import this module by that name
    # answers use the real standard output; prints of the program go to standard error
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        session = Session(runpy.run_path(sys.argv[1])["build"])
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            try:
                answer = {"result": getattr(session, method)(*arguments)}
            except Exception as error:  # another program can raise anything
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
