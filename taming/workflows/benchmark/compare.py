"""Rounds in which two programs take turns, and what comes out of them."""

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from taming.workflows.benchmark.cases import BenchmarkCase, BenchmarkSettings
from taming.workflows.benchmark.flops import count_flops
from taming.workflows.benchmark.peer import PeerConfig, PeerError, PeerProcess
from taming.workflows.benchmark.peers.serve import Session

__all__ = ["Comparison", "Spread", "Timing", "run_benchmark"]

log = logging.getLogger("taming")


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
        first_seconds: its very first call, in which things are compiled and chosen.
        seconds: of a call, one mean for each round.
        peak_memory_gib: of the device, in the rounds; None on the CPU.
    """

    settings: dict[str, Any]
    facts: dict[str, Any]
    first_seconds: float
    seconds: list[float] = field(default_factory=list)
    peak_memory_gib: float | None = None

    @property
    def spread(self) -> Spread:
        """Seconds of a call."""
        return Spread.of(self.seconds)

    @property
    def images_per_second(self) -> float:
        """By the median."""
        return self.settings["batch_size"] / self.spread.median

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
            "images_per_second": self.images_per_second,
            "peak_memory_gib": self.peak_memory_gib,
        }


@dataclass
class Comparison:
    """A measurement of ours, and beside it a peer's.

    Attributes:
        case: the architecture and batch.
        measurement: one of `MEASUREMENTS`.
        ours: our side.
        peer_name: the peer; None: we were timed alone.
        peer: its side.
        steps: calls in a turn, of either side.
        flops: floating-point operations of one call of ours, if they were counted.
        peak_tflops: of the device, likewise.
    """

    case: BenchmarkCase
    measurement: str
    ours: Timing
    peer_name: str | None = None
    peer: Timing | None = None
    steps: int = 1
    flops: int | None = None
    peak_tflops: float | None = None

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

    def record(self) -> dict[str, Any]:
        """As plain data: a line of the results file."""
        ratio = self.ratio
        return {
            "case": asdict(self.case),
            "measurement": self.measurement,
            "steps_per_round": self.steps,
            "ours": self.ours.record(),
            "peer_name": self.peer_name,
            "peer": None if self.peer is None else self.peer.record(),
            "ratio": None if ratio is None else vars(ratio),
            "flops": self.flops,
            "share_of_peak": self.share_of_peak,
        }


def run_benchmark(
    ours: Session,
    cases: Sequence[BenchmarkCase],
    peers: Mapping[str, PeerConfig],
    settings: BenchmarkSettings,
    report: Callable[[Comparison], None],
) -> list[Comparison]:
    """Times our program beside each peer, and alone where no peer can be.

    One peer runs at a time. A peer that cannot be timed is left out, with a logged message.

    Args:
        ours: our side.
        cases: architectures and batches.
        peers: by name.
        settings: how.
        report: called with each comparison as it is made.
    """
    comparisons: list[Comparison] = []
    told: set[tuple[str, str]] = set()

    def keep(comparison: Comparison | None) -> None:
        if comparison is not None:
            comparisons.append(comparison)
            report(comparison)

    def leave_out(name: str, error: PeerError) -> None:
        reason = str(error)
        if (name, reason) not in told:
            known = any(reason == other for _, other in told)
            log.warning("%s is left out%s", name, ", too" if known else f": {reason}")
        told.add((name, reason))

    for case in cases:
        for name, config in peers.items():
            try:
                process = PeerProcess(name, config)
            except PeerError as error:
                leave_out(name, error)
                continue
            with process:
                for measurement in settings.measurements:
                    try:
                        keep(compare(ours, case, measurement, settings, name, config, process))
                    except PeerError as error:
                        leave_out(name, error)
        done = {c.measurement for c in comparisons if c.case is case}
        for measurement in settings.measurements:  # what no peer was timed beside
            if measurement not in done:
                keep(compare(ours, case, measurement, settings))
    return comparisons


def compare(
    ours: Session,
    case: BenchmarkCase,
    measurement: str,
    settings: BenchmarkSettings,
    peer_name: str | None = None,
    config: PeerConfig | None = None,
    peer: Side | None = None,
) -> Comparison | None:
    """One measurement: first calls and warm-up, then rounds in which the sides take turns.

    The other side sleeps meanwhile. Who is first changes from round to round, so that a machine
    that slows down or speeds up favours no side. None: the peer does no such thing.

    Raises:
        PeerError: if the peer fails, or is not the same architecture.
    """
    sides: list[tuple[Side, Timing]] = []
    if peer is not None and config is not None:
        their_settings = settings.for_side(case, config.dtype, config.tf32)
        facts = peer.begin(their_settings, measurement)
        if facts is None:
            return None
        sides.append((peer, Timing(their_settings, facts, 0.0)))
    our_settings = settings.for_side(case)
    facts = ours.begin(our_settings, measurement)
    assert facts is not None
    our_timing = Timing(our_settings, facts, 0.0)
    sides.insert(0, (ours, our_timing))
    comparison = Comparison(case, measurement, our_timing, peak_tflops=settings.peak_tflops)
    if len(sides) == 2:
        comparison.peer_name, comparison.peer = peer_name, sides[1][1]
        check_same_architecture(comparison)
    warm_seconds = 0.0
    for side, timing in reversed(sides):
        warm_seconds = timing.first_seconds = side.run(1)["seconds"]
        for _ in range(settings.warmup):
            warm_seconds = side.run(1)["seconds"]
    comparison.steps = max(settings.steps, math.ceil(settings.turn_seconds / warm_seconds))
    for round_number in range(settings.rounds):
        for side, timing in sides if round_number % 2 == 0 else reversed(sides):
            timing.take(side, comparison.steps)
    if settings.peak_tflops is not None:
        assert ours.call is not None
        comparison.flops = count_flops(ours.call)
    return comparison


def check_same_architecture(comparison: Comparison) -> None:
    """Raises a `PeerError` if a part has other numbers of parameters on the two sides."""
    assert comparison.peer is not None
    here, there = (t.facts["parameters"] for t in (comparison.ours, comparison.peer))
    for part in here.keys() & there.keys():
        if here[part] != there[part]:
            raise PeerError(
                f"its {part} is not of the same architecture: it has {there[part]:,} parameters, "
                f"and ours has {here[part]:,}."
            )
