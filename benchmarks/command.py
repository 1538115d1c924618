"""The command line of both stages, and the order in which they time the cases."""

import argparse
import datetime
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare import OURS, PEERS, ROOT, Program, ProgramError, Record, compare
from benchmarks.machine import machine
from benchmarks.table import table

__all__ = ["DEFAULTS", "QUICK", "Preset", "main", "write_lines"]

# "cases": architectures and batches by name; a case's "measurements" limit what it is used for.
# "peers": the file in peers/ and the dtype, by name. All other entries are defaults of options.
Preset = Mapping[str, Any]
DEFAULTS: dict[str, Any] = {  # of options; a case can override them
    "device": "cuda" if torch.cuda.is_available() else "cpu",
    "threads": torch.get_num_threads(),  # of each program, on the CPU
    # of this program; "bf16" uses autocast (bf16 weights in sampling), and TF32 for the rest
    "dtype": "float32",
    "compile": False,  # our training step; "sample_compiled" is a separate measurement
    "channels_last": False,  # our program only
    "auto": False,  # use what a long training chooses for its steps, and sampling for its weights
    "rounds": 5,  # turns of each program
    "warmup": 2,  # calls that are not counted, after the first call
    "turn_seconds": 1.0,  # approximate minimum duration of one of our turns
}
QUICK = {"rounds": 1, "warmup": 0, "turn_seconds": 0.0}  # to check that the benchmark works


def main(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> list[Record]:
    """Times what the command line selects, writes lines of JSON, and prints the table.

    Args:
        presets: the stage's presets, the default one first.
        measurements: the stage's measurements.
        description: the help text.
        arguments: the command line; None for the command line of this process.
    """
    options = parse_options(presets, measurements, description, arguments)
    torch.set_num_threads(options.threads)
    computer = machine(options.device)
    with ExitStack() as stack:
        ours, *peers = map(stack.enter_context, map(closing, programs(options)))
        measured = ({"machine": computer, **record} for record in measure(options, ours, peers))
        records = list(write_lines(measured, options.output))
    results = table(records) or "nothing was timed: no case has these measurements"
    print(f"on {computer}\n{results}\nwrote {options.output}")
    return records


def write_lines(records: Iterable[Record], path: Path) -> Iterator[Record]:
    """Writes each record to a file as a line of JSON, then yields it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
            yield record


def programs(options: argparse.Namespace) -> Iterator[Program]:
    """Yields this program, the selected peers, and another checkout if one was given."""
    yield Program("taming", ROOT / OURS, checkout=ROOT)
    for name in options.peers:
        script, dtype = options.all_peers[name]
        if options.peer_python.is_file():
            yield Program(name, PEERS / f"{script}.py", options.peer_python, dtype=dtype)
        else:
            missing = f"no Python at {options.peer_python}"
            print(f"{name} cannot be timed: {missing}; see benchmarks/README.md")
    if options.checkout is not None:
        checkout = options.checkout.resolve()
        yield Program(f"taming at {checkout.name}", checkout / OURS, checkout=checkout)


def measure(
    options: argparse.Namespace, ours: Program, peers: Sequence[Program]
) -> Iterator[Record]:
    """Yields our measurements with each peer, and alone where no peer could be timed."""
    common = {name: getattr(options, name) for name in DEFAULTS}
    for name in options.cases:
        case = common | options.all_cases[name] | dict(options.set) | {"name": name}
        possible = case.pop("measurements", options.measurements)
        compared = set()
        for peer in [*peers, None]:
            for measurement in possible:
                if measurement not in options.measurements:
                    continue
                if peer is None and measurement in compared:
                    continue
                try:
                    record = compare(case | {"measurement": measurement}, ours, peer)
                except ProgramError as error:
                    print(error, file=sys.stderr)
                    continue
                if record is not None:
                    compared.add(measurement)
                    yield record
            if peer is not None:
                peer.close()


def parse_options(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    """Parses the options, with the cases, peers and defaults of the selected preset."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=presets, default=next(iter(presets)))
    preset = dict(presets[first.parse_known_args(arguments)[0].preset])
    cases, peers = preset.pop("cases"), preset.pop("peers", {})
    parser = argparse.ArgumentParser(
        parents=[first],
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=cases, default=list(cases))
    add("--measurements", nargs="+", choices=measurements, default=measurements)
    add("--peers", nargs="*", choices=peers, default=list(peers), help="no names: no peers")
    add("--peer-python", type=Path, default=Path(".venv-peers/bin/python"), help="has the peers")
    add("--checkout", type=Path, help="another checkout of this program, timed as a peer")
    add("--set", nargs="+", type=assignment, default=[], metavar="KEY=VALUE", help="in all cases")
    for name, default in DEFAULTS.items():
        boolean = {"action": argparse.BooleanOptionalAction}
        kind = boolean if isinstance(default, bool) else {"type": type(default)}
        add(f"--{name.replace('_', '-')}", default=default, help=" ", **kind)
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    add("--output", type=Path, default=Path(f"outputs/benchmark/{now}.jsonl"))
    parser.set_defaults(**preset, all_cases=cases, all_peers=peers)
    return parser.parse_args(arguments)


def assignment(text: str) -> tuple[str, Any]:
    """Splits `key=value`, the value in JSON."""
    key, _, value = text.partition("=")
    return key, json.loads(value)
