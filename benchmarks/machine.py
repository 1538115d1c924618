"""Names the machine and times a fixed matrix product.

To compare durations between machines, divide each by the seconds of this product on its machine,
measured at about the same time:

    python -m benchmarks.machine
"""

import torch

from taming.runtime.hardware import device_name, product_seconds

__all__ = ["machine"]


def machine(device: str = "cpu") -> str:
    """Returns the GPU, the processor and its bfloat16 instructions, and PyTorch's version."""
    capabilities = torch.cpu.get_capabilities()
    flags = [f"{f} {capabilities[f]}" for f in ("amx_bf16", "avx512_bf16") if f in capabilities]
    processor = [device_name(torch.device("cpu")), torch.backends.cpu.get_cpu_capability(), *flags]
    gpu = [device_name(torch.device(device))] if device != "cpu" else []
    return "; ".join([*gpu, ", ".join(processor), f"torch {torch.__version__}"])


if __name__ == "__main__":
    print(machine())
    for dtype in (torch.float32, torch.bfloat16):
        seconds = product_seconds(dtype)
        print(
            f"product of two 2048×2048 matrices in {dtype}: {1000 * seconds:.1f} ms, "
            f"{2e-9 * 2048**3 / seconds:.0f} billion operations a second"
        )
