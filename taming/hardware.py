"""What the machine at hand can do."""

import torch

__all__ = ["device_name", "has_bf16"]


def has_bf16(device: torch.device) -> bool:
    """Returns whether the device multiplies bfloat16 in hardware; others emulate it, slowly."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = torch.cpu.get_capabilities()  # bf16 by itself is ARM's
    return device.type == "cpu" and any(
        found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16")
    )


def device_name(device: torch.device) -> str:
    """Returns the name of the GPU, or of the processor with the number of threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = torch.cpu.get_capabilities().get("cpu_name", "CPU")
    return f"{name}, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type
