"""What comes out of the rounds: times, rates, ratios and shares of what the device can do."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from taming.workflows.benchmark.cases import BenchmarkCase

__all__ = ["Comparison", "Side", "Spread", "Timing"]


class Side(Protocol):
    """What can be timed: a `Session` here, or a `PeerProcess` that has one."""

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        """See `Session.begin`."""

    def run(self, steps: int) -> dict[str, Any]:
        """See `Session.run`."""


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of one number a round."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of these values, of which there is at least one."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Timing:
    """One side of a comparison.

    Attributes:
        settings: what it was told.
        facts: versions, and numbers of parameters by part.
        work: what one call gets done, by unit.
        first_seconds: its very first call, in which things are compiled and chosen.
        seconds: of a call, one mean for each round.
        peak_memory_gib: of the device, in the rounds; None on the CPU.
    """

    settings: dict[str, Any]
    facts: dict[str, Any]
    work: dict[str, int]
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    peak_memory_gib: float | None = None

    @property
    def spread(self) -> Spread:
        """Seconds of a call."""
        return Spread.of(self.seconds)

    @property
    def per_second(self) -> dict[str, float]:
        """How much of its work is done in a second, by the median."""
        return {unit: number / self.spread.median for unit, number in self.work.items()}

    def take(self, side: Side, steps: int) -> None:
        """Adds a turn."""
        answer = side.run(steps)
        self.seconds.append(answer["seconds"] / steps)
        peak = answer["peak_memory_gib"]
        if peak is not None:
            self.peak_memory_gib = max(peak, self.peak_memory_gib or 0.0)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("device", "threads", "dtype", "tf32")
        return {
            **{name: self.settings[name] for name in names},
            **self.facts,
            "seconds": {**vars(self.spread), "rounds": self.seconds},
            "first_seconds": self.first_seconds,
            **{f"{unit}_per_second": rate for unit, rate in self.per_second.items()},
            "peak_memory_gib": self.peak_memory_gib,
        }


@dataclass
class Comparison:
    """A measurement of ours, and beside it a peer's.

    Attributes:
        case: the architecture and batch.
        measurement: one of the case's `MEASUREMENTS`.
        ours: our side.
        peer_name: the peer; None: we were timed alone.
        peer: its side.
        steps: calls in a turn, of either side.
        flops: floating-point operations of one call of ours, if they were counted.
        peak_tflops: of the device, likewise.
        peak_bandwidth_gbs: of its memory, likewise.
        eager: our side in the same measurement uncompiled, where this one is compiled.
    """

    case: BenchmarkCase
    measurement: str
    ours: Timing
    peer_name: str | None = None
    peer: Timing | None = None
    steps: int = 1
    flops: int | None = None
    peak_tflops: float | None = None
    peak_bandwidth_gbs: float | None = None
    eager: Timing | None = None

    @property
    def ratio(self) -> Spread | None:
        """The peer's time over ours, round by round: above 1, ours is faster."""
        if self.peer is None:
            return None
        pairs = zip(self.peer.seconds, self.ours.seconds, strict=True)
        return Spread.of([theirs / ours for theirs, ours in pairs])

    @property
    def share_of_peak(self) -> float | None:
        """Operations per second of ours over the device's peak."""
        if self.flops is None or self.peak_tflops is None:
            return None
        return self.flops / self.ours.spread.median / (self.peak_tflops * 1e12)

    @property
    def share_of_bandwidth(self) -> float | None:
        """Bytes that ours must read per second over the bandwidth of the device's memory.

        Each step of sampling reads all weights once, however large the batch, and of each sequence
        the keys and values of all tokens up to its own.
        """
        passes = self.case.passes_over_weights(self.measurement)
        if self.peak_bandwidth_gbs is None or passes == 0:
            return None
        facts = self.ours.facts
        bytes_read = passes * facts["weight_bytes"] + facts["cache_bytes"]
        return bytes_read / self.ours.spread.median / (self.peak_bandwidth_gbs * 1e9)

    @property
    def break_even_calls(self) -> float | None:
        """The number of calls after which compiling has saved the time it took.

        ∞ if it saves none; None for what is not compiled.
        """
        if self.eager is None:
            return None
        spent = self.ours.first_seconds - self.eager.first_seconds
        saved = self.eager.spread.median - self.ours.spread.median  # by each call but the first
        if spent <= 0:
            return 1
        return 1 + math.ceil(spent / saved) if saved > 0 else math.inf

    @property
    def break_even(self) -> dict[str, float] | None:
        """The same in what is drawn: images, and their tokens."""
        calls = self.break_even_calls
        if calls is None:
            return None
        return {
            unit: calls * number
            for unit, number in {"images": self.case.batch_size, **self.ours.work}.items()
        }

    def record(self) -> dict[str, Any]:
        """As plain data: a line of the results file."""
        ratio, pays = self.ratio, self.break_even
        return {
            "kind": self.case.KIND,
            "case": asdict(self.case),
            "measurement": self.measurement,
            "steps_per_round": self.steps,
            "ours": self.ours.record(),
            "peer_name": self.peer_name,
            "peer": None if self.peer is None else self.peer.record(),
            "ratio": None if ratio is None else vars(ratio),
            "flops": self.flops,
            "share_of_peak": self.share_of_peak,
            "share_of_bandwidth": self.share_of_bandwidth,
            "break_even": None
            if pays is None
            else {unit: n if math.isfinite(n) else "never" for unit, n in pays.items()},
        }
