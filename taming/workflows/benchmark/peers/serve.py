"""Builds one program's part of a measurement and times it; imports nothing of this project.

Both sides of a comparison go through this file: ours in its own process, a peer in another one and
with another Python, which has this file run as `python serve.py PEER.py` and told what to do by
JSON lines on standard input:

    {"begin": "encode", "settings": {…}}  ->  {"facts": {…}}, null facts where it does not do that
    {"run": 10}                           ->  {"seconds": 0.8, "peak_memory_gib": null}

An error is answered by `{"error": "…"}`. `PEER.py` has a function `build` as `Build` says.
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

Settings = dict[str, Any]
# what is timed, returning a tensor whose values show that it worked, and facts about it
Built = tuple[Callable[[], torch.Tensor], dict[str, Any]]
# settings, measurement and inputs to that; None: the program does no such thing
Build = Callable[[Settings, str, torch.Tensor], Built | None]


class Session:
    """Measurements of one program, one after the other.

    Args:
        build: makes what is timed.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.call: Callable[[], torch.Tensor] | None = None
        self.device = torch.device("cpu")

    def begin(self, settings: Settings, measurement: str) -> dict[str, Any] | None:
        """Builds it anew; returns facts about it, None if the program does no such thing."""
        self.call = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.device = torch.device(settings["device"])
        torch.set_num_threads(settings["threads"])
        torch.set_float32_matmul_precision("high" if settings["tf32"] else "highest")
        torch.backends.cudnn.allow_tf32 = settings["tf32"]
        torch.manual_seed(0)
        built = self.build(settings, measurement, random_inputs(settings).to(self.device))
        if built is None:
            return None
        self.call, facts = built
        return {
            "device_name": device_name(self.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            **facts,
        }

    def run(self, steps: int) -> dict[str, Any]:
        """Calls it `steps` times: seconds of all together, and the device's peak memory.

        Raises:
            FloatingPointError: if it did not give finite numbers, whose timing means nothing.
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


def random_inputs(settings: Settings) -> torch.Tensor:
    """Images `(b 3 H W)` in [-1, 1], or for a transformer tokens `(b n)`; always the same ones."""
    generator = torch.Generator().manual_seed(0)
    batch_size = settings["batch_size"]
    if settings["kind"] == "transformer":
        shape = (batch_size, settings["num_tokens"])
        return torch.randint(settings["codebook_size"], shape, generator=generator)
    resolution = settings["resolution"]
    return torch.rand(batch_size, 3, resolution, resolution, generator=generator) * 2 - 1


def autocast(settings: Settings) -> torch.autocast:
    """A new context of the settings' `dtype`, `"float32"` or `"bf16"` (mixed precision)."""
    device = torch.device(settings["device"])
    return torch.autocast(device.type, torch.bfloat16, enabled=settings["dtype"] == "bf16")


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            name = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def load_build(path: str) -> Build:
    """The function `build` of a file."""
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    """Does what one line asks for."""
    try:
        if "begin" in request:
            return {"facts": session.begin(request["settings"], request["begin"])}
        return session.run(request["run"])
    except Exception as error:  # whatever a foreign program raises: told, and it goes on
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answers lines until the input ends."""
    # what the peer prints goes to standard error; answers have the real standard output
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        session = Session(lambda *arguments: load_build(sys.argv[1])(*arguments))
        for line in sys.stdin:
            print(json.dumps(answer(session, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
