"""What the scripts of both stages share: their options, and the order in which things are timed."""

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare import ROOT, Program, ProgramError, Record, break_even, compare
from benchmarks.table import table

__all__ = ["Preset", "main"]

# "cases": architectures and batches by name, whose "measurements" say what they are for, and whose
# "rounds" come before the option's;
# "peers": file in peers/ and, where it is not the run's, precision; and defaults of the options
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
    folder, checkout, python = ROOT / "benchmarks", options["checkout"], options["peer_python"]
    programs = []
    for name in options["peers"]:
        script, precision = options["all_peers"][name]
        if python.is_file():
            build = folder / "peers" / f"{script}.py"
            programs.append(Program(name, build, python, precision=precision))
        else:
            print(f"{name} cannot be timed: no Python at {python}; see benchmarks/README.md")
    if checkout is not None:
        checkout = checkout.resolve()
        build = options["adapter"] or checkout / "benchmarks" / "ours.py"
        programs.append(Program(f"taming at {checkout.name}", build, checkout=checkout))
    plain = {k: v for k, v in options.items() if isinstance(v, str | int | float | None)}
    records: list[Record] = []
    options["output"].parent.mkdir(parents=True, exist_ok=True)
    with (
        options["output"].open("w", encoding="utf-8") as lines,
        Program("taming", folder / "ours.py", checkout=ROOT) as ours,
    ):
        for name in options["cases"]:
            case = {"name": name, **options["all_cases"][name], **dict(options["set"])}
            possible = case.pop("measurements", measurements)
            chosen = [m for m in options["measurements"] if m in possible]
            left = set(chosen)  # beside no peer yet
            for program in (*programs, None):
                with program or nullcontext() as peer:
                    for measurement in chosen if peer else sorted(left, key=chosen.index):
                        try:
                            record = compare(case, measurement, plain, ours, peer)
                        except ProgramError as error:
                            if peer is None:
                                raise
                            print(error, file=sys.stderr)
                            continue
                        if record is None:
                            continue
                        left.discard(measurement)
                        records.append({**record, "break_even": break_even(record, records)})
                        print(json.dumps(records[-1], ensure_ascii=False), file=lines, flush=True)
    print(table(records) if records else "nothing was timed: no case has these measurements")
    print(f"wrote {options['output']}")
    return records


def parsed(
    presets: Mapping[str, Preset],
    measurements: Sequence[str],
    description: str | None,
    arguments: Sequence[str] | None,
) -> dict[str, Any]:
    """Returns the options, with the chosen preset's cases, peers and defaults."""
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
        ("--auto", "in our training steps what a long training chooses, in place of these"),
    ):
        add(name, action=argparse.BooleanOptionalAction, default=False, help=text)
    add("--rounds", type=int, default=5, help="turns of each side")
    add("--warmup", type=int, default=2, help="uncounted calls before them, besides the first")
    add("--turn-seconds", type=float, default=1.0, help="least duration of a turn of ours, about")
    add("--peak-tflops", type=float, help="of the device in this precision, to show our share")
    add("--peak-bandwidth-gbs", type=float, help="of its memory, to show our share in sampling")
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    add("--output", type=Path, default=Path(f"outputs/benchmark/{now}.jsonl"))
    parser.set_defaults(**preset)
    return {**vars(parser.parse_args(arguments)), "all_cases": cases, "all_peers": peers}


def assignment(text: str) -> tuple[str, Any]:
    """Splits `key=value`, the value in JSON."""
    key, _, value = text.partition("=")
    return key, json.loads(value)
