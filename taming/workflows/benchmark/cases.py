"""What is measured: architectures, measurements, and how they are timed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taming.errors import UserError

__all__ = ["MEASUREMENTS", "BenchmarkCase", "BenchmarkSettings", "check_dtype"]

MEASUREMENTS = {
    "step": "training step, discriminator on",
    "step_before_start": "training step before its start",
    "autoencoder_step": "autoencoder's training step",
    "encode": "encode",
    "decode": "decode",
}


@dataclass(frozen=True)
class BenchmarkCase:
    """One architecture and batch, the same on all sides.

    Attributes:
        name: of the case.
        batch_size: images at once.
        resolution: their height and width.
        base_channels, channel_multipliers, num_residual_blocks, attention_resolutions,
            latent_channels: of encoder and decoder, see `VQGAN`.
        codebook_size, codebook_dim: of the quantizer.
        discriminator_channels, discriminator_layers: of the patch discriminator.
    """

    name: str
    batch_size: int
    resolution: int
    base_channels: int
    channel_multipliers: Sequence[int]
    num_residual_blocks: int
    attention_resolutions: Sequence[int]
    latent_channels: int
    codebook_size: int
    codebook_dim: int
    discriminator_channels: int = 64
    discriminator_layers: int = 3


@dataclass(frozen=True)
class BenchmarkSettings:
    """How things are timed.

    Attributes:
        device: `"cpu"`, `"cuda"`, `"cuda:1"` …
        threads: on both sides.
        dtype: ours, and the peers' where they name none: `"float32"`, or `"bf16"` autocast.
        tf32: whether float32 products may use TF32, likewise.
        measurements: which of `MEASUREMENTS`.
        rounds: turns of each side.
        warmup: calls before the first round that are not counted, besides the very first one.
        steps: least number of calls in a turn.
        turn_seconds: a turn is about this long where `steps` calls are shorter.
        peak_tflops: of the device, in 10¹² operations per second; None: its share is not reported.
    """

    device: str
    threads: int
    dtype: str = "float32"
    tf32: bool = False
    measurements: Sequence[str] = tuple(MEASUREMENTS)
    rounds: int = 5
    warmup: int = 2
    steps: int = 3
    turn_seconds: float = 1.0
    peak_tflops: float | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        for name in ("threads", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if min(self.warmup, self.turn_seconds) < 0:
            raise UserError("warmup and turn_seconds must not be negative.")
        unknown = [name for name in self.measurements if name not in MEASUREMENTS]
        if unknown or not self.measurements:
            raise UserError(
                f"measurements must be some of {', '.join(MEASUREMENTS)}, not "
                f"{', '.join(unknown) or 'none'}."
            )
        if self.peak_tflops is not None and self.peak_tflops <= 0:
            raise UserError(f"peak_tflops must be positive, or null, not {self.peak_tflops}.")

    def for_side(
        self, case: BenchmarkCase, dtype: str | None = None, tf32: bool | None = None
    ) -> dict[str, Any]:
        """What one side is told, as plain data; `dtype` and `tf32` if they are its own."""
        return {
            **asdict(case),
            "device": self.device,
            "threads": self.threads,
            "dtype": self.dtype if dtype is None else dtype,
            "tf32": self.tf32 if tf32 is None else tf32,
        }


def check_dtype(dtype: str | None) -> None:
    """Raises a `UserError` if it is not a name of a dtype."""
    if dtype not in ("float32", "bf16", None):
        raise UserError(f"dtype is float32 or bf16, not {dtype!r}.")
