"""Builds what a program does in a measurement and times it; imports nothing of this project.

Each program in a comparison is a process `python serve.py BUILD.py` that answers JSON lines:

    {"begin": "encode", "settings": {…}}  ->  {"facts": {…}}; null facts: it does no such thing
    {"run": 10}                           ->  {"seconds": 0.8, "peak_memory_gib": null}
    {"flops": true}                       ->  {"flops": 123456}

or {"error": "…"}. `BUILD.py` has a function `build(settings, measurement, inputs)` that returns
None for what the program does not do, or a pair: the call to time, which returns a tensor whose
values show that it worked, and facts about the program.
"""

import gc
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Settings = dict[str, Any]
Build = Callable[[Settings, str, torch.Tensor], tuple[Callable[[], torch.Tensor], dict] | None]


class Session:
    """Times one program's measurements, one after the other.

    Args:
        build: makes what is timed.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.call: Callable[[], torch.Tensor] | None = None

    def begin(self, settings: Settings, measurement: str) -> dict[str, Any] | None:
        """Builds a measurement; returns facts about it, None if the program does no such thing."""
        self.call = None
        gc.collect()
        self.device = torch.device(settings["device"])
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        torch.set_num_threads(settings["threads"])
        torch.set_float32_matmul_precision("high" if settings["tf32"] else "highest")
        torch.backends.cudnn.allow_tf32 = settings["tf32"]
        torch.manual_seed(0)
        built = self.build(settings, measurement, random_inputs(settings).to(self.device))
        if built is None:
            return None
        self.call, facts = built
        on_gpu = self.device.type == "cuda"
        return {
            "device_name": torch.cuda.get_device_name(self.device) if on_gpu else processor(),
            "processor": processor(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            **facts,
        }

    def run(self, steps: int) -> dict[str, Any]:
        """Calls it `steps` times; returns the seconds of all together and the peak memory.

        Raises:
            FloatingPointError: if the result is not finite, which makes its time meaningless.
        """
        assert self.call is not None
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        for _ in range(steps):
            result = self.call()
        if on_gpu:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - started
        if not bool(result.isfinite().all()):
            raise FloatingPointError("it gave NaN or infinite numbers")
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30 if on_gpu else None
        return {"seconds": seconds, "peak_memory_gib": peak}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what one line asks for; an error is an answer too."""
        try:
            if "begin" in request:
                return {"facts": self.begin(request["settings"], request["begin"])}
            if "flops" in request:
                assert self.call is not None
                return {"flops": count_flops(self.call)}
            return self.run(request["run"])
        except Exception as error:  # whatever a foreign program raises
            return {"error": f"{type(error).__name__}: {error}"}


def random_inputs(settings: Settings) -> torch.Tensor:
    """Images `(b 3 H W)` in [-1, 1], or for a transformer tokens `(b n)`; always the same ones."""
    generator = torch.Generator().manual_seed(0)
    batch_size = settings["batch_size"]
    if "num_tokens" in settings:
        shape = (batch_size, settings["num_tokens"])
        return torch.randint(settings["codebook_size"], shape, generator=generator)
    resolution = settings["resolution"]
    return torch.rand(batch_size, 3, resolution, resolution, generator=generator) * 2 - 1


def autocast(settings: Settings) -> torch.autocast:
    """A new context of the settings' `dtype`, `"float32"` or `"bf16"` (mixed precision)."""
    device = torch.device(settings["device"])
    return torch.autocast(device.type, torch.bfloat16, enabled=settings["dtype"] == "bf16")


def processor() -> str:
    """The CPU's name, and whether it multiplies bfloat16 in hardware."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            lines = [line.partition(":") for line in file]
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in lines}
    name = found.get("model name") or platform.processor() or platform.machine()
    flags = found.get("flags", "").split()
    known = (f"{f} {'yes' if f in flags else 'no'}" for f in ("amx_bf16", "avx512_bf16"))
    return ", ".join([name, torch.backends.cpu.get_cpu_capability(), *(known if flags else ())])


class _FlopCounter(TorchDispatchMode):
    # PyTorch's own FlopCounterMode also follows modules by hooks, which fail in a step that asks
    # for the gradient of a leaf (`torch.autograd.grad`), as ours does

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry

        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:  # in inference mode composite operations arrive whole
                result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


def count_flops(call: Callable[[], object]) -> int:
    """Operations of matrix products, convolutions and attention in one call, by PyTorch's formulas.

    Backward passes are included, and compiled parts run uncompiled. Attention counts whole, causal
    or not, as is usual (Chowdhery et al. 2022, "PaLM", appendix B).
    """
    with torch.compiler.set_stance("force_eager"), _FlopCounter() as counter:
        call()
    return counter.total


def load_build(path: str) -> Build:
    """The function `build` of a file."""
    spec = importlib.util.spec_from_file_location("build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def main() -> None:
    """Answers lines until the input ends."""
    # what the program prints goes to standard error; answers have the real standard output
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        session = Session(lambda *arguments: load_build(sys.argv[1])(*arguments))
        for line in sys.stdin:
            print(json.dumps(session.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
