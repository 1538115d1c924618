"""What the scripts of both stages share: their options, and the order in which things are timed."""

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs import PEERS, Process, Program, ProgramError, our_program
from benchmarks.table import table
from benchmarks.timing import Plan, Record, break_even, compare

__all__ = ["Preset", "run"]

SETTINGS = ("device", "threads", "dtype", "tf32", "compile", "channels_last")


@dataclass(frozen=True)
class Preset:
    """Defaults of a run: what is timed, beside whom, and how.

    Attributes:
        cases: architectures and batches by name; `measurements` in one says what it is for.
        peers: by name: a file of `peers/`, and its precision where it differs from ours.
        options: defaults of the command's options.
    """

    cases: Mapping[str, dict[str, Any]]
    peers: Mapping[str, dict[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


def run(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> list[Record]:
    """Times what the command line asks for, prints the table, and writes lines of JSON.

    Args:
        presets: of the stage, the default first.
        measurements: that its programs can do.
        description: of the script, for `--help`.
        arguments: the command line; None: that of the process.
    """
    options, preset = parsed(presets, measurements, description, arguments)
    settings = {name: getattr(options, name) for name in SETTINGS}
    plan = Plan(**{f.name: getattr(options, f.name) for f in fields(Plan)})
    peers = [
        Program(name, PEERS / f"{peer['script']}.py", options.peer_python, *peer["precision"])
        for name, peer in preset.peers.items()
        if options.peers is None or name in options.peers
    ]
    if options.checkout is not None:
        name = options.checkout.resolve().name
        peers.append(our_program(name, options.checkout, options.adapter))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    failures: set[tuple[str, str]] = set()

    with options.output.open("w", encoding="utf-8") as lines, Process(our_program()) as ours:

        def time(measurement: str, peer: Process | None = None) -> None:
            try:
                record = compare(case, measurement, settings, plan, ours, peer)
            except ProgramError as error:
                if error.name == ours.name:
                    raise SystemExit(error.reason) from error
                if (error.name, error.reason) not in failures:
                    known = error.reason in {reason for _, reason in failures}
                    print(f"{error.name} is left out, too" if known else error, file=sys.stderr)
                failures.add((error.name, error.reason))
                return
            if record is not None:
                records.append({**record, "break_even": break_even(record, records)})
                print(json.dumps(records[-1], ensure_ascii=False), file=lines, flush=True)

        for name in options.cases or preset.cases:
            case = {"name": name, **preset.cases[name], **dict(options.set)}
            possible = case.pop("measurements", measurements)
            chosen = [m for m in options.measurements or measurements if m in possible]
            for program in peers:
                with Process(program) as peer:
                    for measurement in chosen:
                        time(measurement, peer)
            done = {r["measurement"] for r in records if r["case"] == case}
            for measurement in chosen:  # what no peer was timed beside
                if measurement not in done:
                    time(measurement)
    print(table(records) if records else "nothing was timed: no case has these measurements")
    print(f"wrote {options.output}")
    return records


def parsed(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None,
) -> tuple[argparse.Namespace, Preset]:
    """The options, with the chosen preset's defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=presets, default=next(iter(presets)))
    preset = presets[first.parse_known_args(arguments)[0].preset]
    parser = argparse.ArgumentParser(
        parents=[first],
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=preset.cases, help="all of the preset if not given")
    add("--measurements", nargs="+", choices=measurements, help="all if not given")
    add("--peers", nargs="*", choices=[*preset.peers, []], help="all if not given; nothing: none")
    add("--set", nargs="+", type=assignment, default=[], metavar="KEY=VALUE", help="in all cases")
    add("--checkout", type=Path, help="another checkout of this program, timed as a peer")
    add("--adapter", type=Path, help="builds its measurements, if not its own benchmarks/ours.py")
    add("--peer-python", type=Path, default=Path(".venv-peers/bin/python"), help="has the peers")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--threads", type=int, default=torch.get_num_threads(), help="of each side, on the CPU")
    add("--dtype", choices=["float32", "bf16"], default="float32", help="bf16: autocast")
    flag = {"action": argparse.BooleanOptionalAction, "default": False}
    add("--tf32", help="in float32 products", **flag)
    add("--compile", help="our training step; sampling has a measurement of its own", **flag)
    add("--channels-last", help="memory format of our side", **flag)
    for name, kind, text in (
        ("rounds", int, "turns of each side"),
        ("warmup", int, "uncounted calls before them, besides the first"),
        ("steps", int, "least number of calls in a turn"),
        ("turn_seconds", float, "a turn is about this long if so few calls would be shorter"),
        ("peak_tflops", float, "of the device in this precision: our share is reported"),
        ("peak_bandwidth_gbs", float, "of its memory, likewise, in sampling"),
    ):
        default = getattr(Plan, name)
        add(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    add("--output", type=Path, default=Path(f"outputs/benchmark/{now}.jsonl"))
    parser.set_defaults(**preset.options)
    return parser.parse_args(arguments), preset


def assignment(text: str) -> tuple[str, Any]:
    """`key=value`, the value in JSON."""
    key, _, value = text.partition("=")
    return key, json.loads(value)
