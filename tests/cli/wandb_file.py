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
        space = BLOCK - place % BLOCK
        if space < 7:
            place += space
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

    entries: list[Any] = []
    for _ in range(600):
        entries = [Record.FromString(chunk) for chunk in chunks(file.read_bytes())]
        if entries and entries[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)
    return entries


def artifacts(file: Path) -> list[tuple[str, str, str]]:
    """Type, name and digest of each artifact."""
    return [(artifact.type, artifact.name, artifact.digest) for artifact in _artifacts(file)]


def inputs(file: Path) -> list[str]:
    """Names of the inputs of the last artifact, the model."""
    return json.loads(_artifacts(file)[-1].metadata)["inputs"]


def _artifacts(file: Path) -> list[Any]:
    return [r.artifact for r in records(file) if r.WhichOneof("record_type") == "artifact"]


def run_id(file: Path) -> str:
    (run,) = (r.run for r in records(file) if r.WhichOneof("record_type") == "run")
    return run.run_id


def column(file: Path, name: str) -> list[Any]:
    """Values of a logged number."""
    values = []
    for record in records(file):
        items = {"".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        if name in items:
            values.append(json.loads(items[name]))
    return values
