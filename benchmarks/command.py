"""What the commands of both stages share: options, and the order in which things are timed."""

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

__all__ = ["DEFAULTS", "QUICK", "Preset", "main", "written"]

# "cases": architectures and batches by name, whose "measurements" say what they are for;
# "peers": by name, file in peers/ and dtype; the rest are defaults of the options
Preset = Mapping[str, Any]
DEFAULTS: dict[str, Any] = {  # of options; a case's own value comes before
    "device": "cuda" if torch.cuda.is_available() else "cpu",
    "threads": torch.get_num_threads(),  # of each side, on the CPU
    # not of peers; or bf16: autocast (in sampling the weights), and TF32 for the rest
    "dtype": "float32",
    "compile": False,  # our training step; sampling has a measurement of its own
    "channels_last": False,  # our side
    "auto": False,  # what a long training chooses for its steps, and sampling for its weights
    "rounds": 5,  # turns of each side
    "warmup": 2,  # uncounted calls before them, besides the first
    "turn_seconds": 1.0,  # least duration of a turn of ours, about
}
QUICK = {"rounds": 1, "warmup": 0, "turn_seconds": 0.0}  # to see that it works


def main(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> list[Record]:
    """Times what the command line asks for, writes lines of JSON, and prints the table.

    Args:
        presets: of the stage, the default first.
        measurements: of the stage.
        description: of the command.
        arguments: the command line, if not that of the process.
    """
    options = parsed(presets, measurements, description, arguments)
    torch.set_num_threads(options.threads)
    computer = machine(options.device)
    with ExitStack() as stack:
        ours, *peers = map(stack.enter_context, map(closing, programs(options)))
        timed = ({"machine": computer, **record} for record in measured(options, ours, peers))
        records = list(written(timed, options.output))
    results = table(records) or "nothing was timed: no case has these measurements"
    print(f"on {computer}\n{results}\nwrote {options.output}")
    return records


def written(records: Iterable[Record], path: Path) -> Iterator[Record]:
    """Yields records, each after writing it to a file as a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
            yield record


def programs(options: argparse.Namespace) -> Iterator[Program]:
    """Yields our side, the chosen peers, and another checkout if there is one."""
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


def measured(
    options: argparse.Namespace, ours: Program, peers: Sequence[Program]
) -> Iterator[Record]:
    """Yields our measurements beside each peer, and alone those that no peer could be timed in."""
    common = {name: getattr(options, name) for name in DEFAULTS}
    for name in options.cases:
        case = common | options.all_cases[name] | dict(options.set) | {"name": name}
        possible = case.pop("measurements", options.measurements)
        timed = set()
        for peer in [*peers, None]:
            for measurement in possible:
                done = peer is None and measurement in timed
                if done or measurement not in options.measurements:
                    continue
                try:
                    record = compare(case | {"measurement": measurement}, ours, peer)
                except ProgramError as error:
                    print(error, file=sys.stderr)
                    continue
                if record is not None:
                    timed.add(measurement)
                    yield record
            if peer is not None:
                peer.close()


def parsed(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    """Returns the options, with the chosen preset's cases, peers and defaults."""
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
    add("--peers", nargs="*", choices=peers, default=list(peers), help="none, if no name follows")
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
