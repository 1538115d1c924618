"""What the scripts of both stages share: their options, and the order in which things are timed."""

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs import PEERS, ROOT, Process, Program, ProgramError
from benchmarks.table import table
from benchmarks.timing import Record, break_even, compare

__all__ = ["Preset", "main"]

# "cases": architectures and batches by name, whose "measurements" say what they are for;
# "peers": file in peers/, dtype and tf32 by name, None: as ours; and defaults of the options
Preset = Mapping[str, Any]


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
        description: of the script.
        arguments: the command line, if not that of the process.
    """
    options = parsed(presets, measurements, description, arguments)
    programs = [
        Program(name, PEERS / f"{script}.py", options["peer_python"], dtype, tf32)
        for name, (script, dtype, tf32) in options["all_peers"].items()
        if name in options["peers"]
    ]
    checkout = options["checkout"]
    if checkout is not None:
        build = options["adapter"] or checkout / "benchmarks" / "ours.py"
        name = f"taming at {checkout.resolve().name}"
        programs.append(Program(name, build.resolve(), checkout=checkout.resolve()))
    plain = {k: v for k, v in options.items() if isinstance(v, str | int | float | None)}
    records: list[Record] = []
    failures: set[str] = set()

    def time(case: Mapping[str, Any], measurement: str, peer: Process | None = None) -> None:
        try:
            record = compare(dict(case), measurement, plain, ours, peer)
        except ProgramError as error:
            if error.name == ours.name:
                raise
            if str(error) not in failures:
                print(error, file=sys.stderr)
            failures.add(str(error))
            return
        if record is not None:
            records.append({**record, "break_even": break_even(record, records)})
            print(json.dumps(records[-1], ensure_ascii=False), file=lines, flush=True)

    options["output"].parent.mkdir(parents=True, exist_ok=True)
    here = Program("taming", ROOT / "benchmarks" / "ours.py", checkout=ROOT)
    with options["output"].open("w", encoding="utf-8") as lines, Process(here) as ours:
        for name in options["cases"]:
            case = {"name": name, **options["all_cases"][name], **dict(options["set"])}
            possible = case.pop("measurements", measurements)
            chosen = [m for m in options["measurements"] if m in possible]
            for program in programs:
                with Process(program) as peer:
                    for measurement in chosen:
                        time(case, measurement, peer)
            done = {r["measurement"] for r in records if r["case"] == case}
            for measurement in chosen:
                if measurement not in done:  # beside no peer
                    time(case, measurement)
    print(table(records) if records else "nothing was timed: no case has these measurements")
    print(f"wrote {options['output']}")
    return records


def parsed(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None,
) -> dict[str, Any]:
    """The options, with the chosen preset's cases, peers and defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=presets, default=next(iter(presets)))
    preset = dict(presets[first.parse_known_args(arguments)[0].preset])
    cases, peers = preset.pop("cases"), preset.pop("peers")
    parser = argparse.ArgumentParser(
        parents=[first],
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=cases, default=list(cases))
    add("--measurements", nargs="+", choices=measurements, default=list(measurements))
    add("--peers", nargs="*", choices=peers, default=list(peers), help="none, if no name follows")
    add("--set", nargs="+", type=assignment, default=[], metavar="KEY=VALUE", help="in all cases")
    add("--checkout", type=Path, help="another checkout of this program, timed as a peer")
    add("--adapter", type=Path, help="builds its measurements, if not its benchmarks/ours.py")
    add("--peer-python", type=Path, default=Path(".venv-peers/bin/python"), help="has the peers")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--threads", type=int, default=torch.get_num_threads(), help="of each side, on the CPU")
    add("--dtype", choices=["float32", "bf16"], default="float32", help="bf16: autocast")
    for name, text in (
        ("--tf32", "in float32 products"),
        ("--compile", "our training step; sampling has a measurement of its own"),
        ("--channels-last", "memory format of our side"),
    ):
        add(name, action=argparse.BooleanOptionalAction, default=False, help=text)
    add("--rounds", type=int, default=5, help="turns of each side")
    add("--warmup", type=int, default=2, help="uncounted calls before them, besides the first")
    add("--steps", type=int, default=3, help="least number of calls in a turn")
    add("--turn-seconds", type=float, default=1.0, help="least duration of a turn of ours, about")
    add("--peak-tflops", type=float, help="of the device in this precision, to show our share")
    add("--peak-bandwidth-gbs", type=float, help="of its memory, to show our share in sampling")
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    add("--output", type=Path, default=Path(f"outputs/benchmark/{now}.jsonl"))
    parser.set_defaults(**preset)
    return {**vars(parser.parse_args(arguments)), "all_cases": cases, "all_peers": peers}


def assignment(text: str) -> tuple[str, Any]:
    """`key=value`, the value in JSON."""
    key, _, value = text.partition("=")
    return key, json.loads(value)
