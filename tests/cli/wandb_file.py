"""Reads what an offline run of Weights & Biases wrote: a log in LevelDB's format, of protobufs."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
FULL, FIRST, LAST = 1, 2, 4


def chunks(content: bytes) -> Iterator[bytes]:
    place, parts = 7, b""  # after the file's own header
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        data = content[place + 7 : place + 7 + length]
        place += 7 + length
        parts = data if kind in (FULL, FIRST) else parts + data
        if kind in (FULL, LAST):
            yield parts


def records(file: Path) -> list[Any]:
    """All records, once the last one is there: wandb's own process writes them."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: list[Any] = []
    for _ in range(600):
        found = [Record.FromString(chunk) for chunk in chunks(file.read_bytes())]
        if found and found[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)
    return found


def artifacts(file: Path) -> list[tuple[str, str, str, bool]]:
    """Type, name, digest and whether it is an input, of each artifact."""
    found = [r.artifact for r in records(file) if r.WhichOneof("record_type") == "artifact"]
    return [(a.type, a.name, a.digest, a.use_after_commit) for a in found]


def run_id(file: Path) -> str:
    (run,) = (r.run for r in records(file) if r.WhichOneof("record_type") == "run")
    return run.run_id


def column(file: Path, name: str) -> list[Any]:
    """Values of a logged number."""
    found = []
    for record in records(file):
        items = {"".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        if name in items:
            found.append(json.loads(items[name]))
    return found
