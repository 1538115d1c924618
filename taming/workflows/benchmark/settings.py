"""How things are timed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taming.errors import UserError
from taming.workflows.benchmark.cases import MEASUREMENTS, BenchmarkCase, check_measurements

__all__ = ["BenchmarkSettings", "check_dtype"]


@dataclass(frozen=True)
class BenchmarkSettings:
    """How things are timed.

    Attributes:
        device: `"cpu"`, `"cuda"`, `"cuda:1"` …
        threads: on both sides.
        dtype: ours, and the peers' where they name none: `"float32"`, or `"bf16"`, which is
            autocast, and in sampling the weights themselves.
        tf32: whether float32 products may use TF32, likewise.
        measurements: which of `MEASUREMENTS`; None: all that a case has.
        rounds: turns of each side.
        warmup: calls before the first round that are not counted, besides the very first one.
        steps: least number of calls in a turn.
        turn_seconds: a turn is about this long where `steps` calls are shorter.
        peak_tflops: of the device, in 10¹² operations per second; None: its share is not reported.
        peak_bandwidth_gbs: of the device's memory, in 10⁹ bytes per second; likewise.
    """

    device: str
    threads: int
    dtype: str = "float32"
    tf32: bool = False
    measurements: Sequence[str] | None = None
    rounds: int = 5
    warmup: int = 2
    steps: int = 3
    turn_seconds: float = 1.0
    peak_tflops: float | None = None
    peak_bandwidth_gbs: float | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        for name in ("threads", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if min(self.warmup, self.turn_seconds) < 0:
            raise UserError("warmup and turn_seconds must not be negative.")
        check_measurements(self.measurements, MEASUREMENTS, "measurements")
        for name in ("peak_tflops", "peak_bandwidth_gbs"):
            peak = getattr(self, name)
            if peak is not None and peak <= 0:
                raise UserError(f"{name} must be positive, or null, not {peak}.")

    def for_side(
        self, case: BenchmarkCase, dtype: str | None = None, tf32: bool | None = None
    ) -> dict[str, Any]:
        """What one side is told, as plain data; `dtype` and `tf32` if they are its own."""
        return {
            "kind": case.KIND,
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
