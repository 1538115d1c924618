"""Rounds in which two programs take turns."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence

from taming.errors import UserError
from taming.workflows.benchmark.cases import BenchmarkCase
from taming.workflows.benchmark.flops import count_flops
from taming.workflows.benchmark.peer import PeerConfig, PeerError, PeerProcess
from taming.workflows.benchmark.peers.serve import Session
from taming.workflows.benchmark.settings import BenchmarkSettings
from taming.workflows.benchmark.timing import Comparison, Side, Timing

__all__ = ["compare", "run_benchmark"]

log = logging.getLogger("taming")


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

    Raises:
        UserError: if there is nothing to measure.
    """
    chosen = {case.name: case.chosen(settings.measurements) for case in cases}
    if not any(chosen.values()):
        raise UserError("there is nothing to time: no case has any of these measurements.")
    comparisons: list[Comparison] = []
    told: set[tuple[str, str]] = set()

    def keep(comparison: Comparison | None) -> None:
        if comparison is not None:
            comparison.eager = eager_side(comparison, comparisons)
            comparisons.append(comparison)
            report(comparison)

    def leave_out(name: str, error: PeerError) -> None:
        reason = str(error)
        if (name, reason) not in told:
            known = any(reason == other for _, other in told)
            log.warning("%s is left out%s", name, ", too" if known else f": {reason}")
        told.add((name, reason))

    for case in cases:
        measurements = chosen[case.name]
        for name, config in peers.items() if measurements else ():
            try:
                process = PeerProcess(name, config)
            except PeerError as error:
                leave_out(name, error)
                continue
            with process:
                for measurement in measurements:
                    try:
                        keep(compare(ours, case, measurement, settings, name, config, process))
                    except PeerError as error:
                        leave_out(name, error)
        done = {c.measurement for c in comparisons if c.case is case}
        for measurement in measurements:  # what no peer was timed beside
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
    work = case.work(measurement)
    sides: list[tuple[Side, Timing]] = []
    if peer is not None and config is not None:
        their_settings = settings.for_side(case, config.dtype, config.tf32)
        facts = peer.begin(their_settings, measurement)
        if facts is None:
            return None
        sides.append((peer, Timing(their_settings, facts, work)))
    our_settings = settings.for_side(case)
    facts = ours.begin(our_settings, measurement)
    assert facts is not None
    our_timing = Timing(our_settings, facts, work)
    sides.insert(0, (ours, our_timing))
    comparison = Comparison(
        case,
        measurement,
        our_timing,
        peak_tflops=settings.peak_tflops,
        peak_bandwidth_gbs=settings.peak_bandwidth_gbs,
    )
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
    if settings.peak_tflops is not None and case.passes_over_weights(measurement) == 0:
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


def eager_side(comparison: Comparison, earlier: Sequence[Comparison]) -> Timing | None:
    """Our side of the same measurement without its `_compiled`, timed beside the same peer."""
    eager = comparison.measurement.removesuffix("_compiled")
    if eager == comparison.measurement:
        return None
    sought = (comparison.case.name, eager, comparison.peer_name)
    found = (c.ours for c in earlier if (c.case.name, c.measurement, c.peer_name) == sought)
    return next(found, None)
