"""Damaged files are read or refused with a one-line error.

`pytest tests/fuzz --hypothesis-profile=long -s` takes an hour and prints the number of outcomes.
"""

import json
import resource
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readers import READERS

from taming.runtime.errors import UserError

MAX_SECONDS = 20  # generous, for a busy machine
MAX_MEMORY = 1 << 20  # KiB of growth
ODD = [None, -1, 0, 1.5, "", "x\x1b[2J", [], {}, [1, 2], [[]], True, 10**5, 10**20, float("nan")]

OUTCOMES: Counter[str] = Counter()  # of the current reader
Edit = tuple[Any, ...]
PLACE = st.floats(0, 1, exclude_max=True)
EDITS = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("set"), PLACE, st.sampled_from(b"\0\xff019/.-{}[]\"'\n")),
    st.tuples(st.just("cut"), PLACE, PLACE),
    st.tuples(st.just("double"), PLACE, PLACE),
    st.tuples(st.just("leaf"), PLACE, st.sampled_from(ODD)),  # of JSON
)
# reader, file and edits that once gave a traceback, took forever, or were read as intact
CORPUS: list[tuple[str, str, list[Edit]]] = [
    ("model", "model/config.json", [("key", "grid_size", None)]),
    ("model", "model/config.json", [("key", "conditioning", {"kind": []})]),
    ("model", "model/transformer/config.json", [("key", "num_context_ids", 0)]),
    ("model", "model/transformer/config.json", [("key", "num_layers", 10**6)]),
    ("model", "model/transformer/config.json", [("key", "context_length", 10**12)]),
    ("model", "model/tokenizer/config.json", [("key", "base_channels", 3072)]),
    ("model", "model/tokenizer/config.json", [("key", "channel_multipliers", [])]),
    ("model", "model/tokenizer/config.json", [("key", "quantizer", {"kind": "vector"})]),
    ("model", "model/tokenizer/config.json", [("all", '"vqgan"')]),
    ("label tables", "one.json", [("all", "[" * 100_000)]),
    ("tokens", "cache/indices.npy", [("flip", 0.9, 0)]),
    ("tokens", "cache/meta.json", [("key", "replaced", 5)]),
    ("tokens", "cache/meta.json", [("key", "checksums", None)]),
    ("run", "metrics.csv", [("all", "step,a\nx,1\n")]),
    ("run", "result.json", [("all", "[1]")]),
    ("run", "config.yaml", [("all", "trainer:\n  max_steps: 4x\n")]),
    ("config", "config.yaml", [("all", "data:\n  path: ${run_dir)/x}\n")]),
    ("samples", "samples.npz", [("cut", 0.1, 0.9)]),
]


@pytest.fixture(scope="module", params=READERS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a reader's name and its directory of intact files."""
    directory = tmp_path_factory.mktemp(request.param)
    READERS[request.param].make(directory)
    READERS[request.param].read(directory)
    OUTCOMES.clear()
    yield request.param, directory
    counted = ", ".join(f"{number:,} {what}" for what, number in OUTCOMES.most_common())
    print(f"\n{request.param}: {OUTCOMES.total():,} damaged: {counted}")  # noqa: T201


@given(data=st.data())
def test_damage_gives_a_one_line_error(whole: tuple[str, Path], data: st.DataObject) -> None:
    name, directory = whole
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    read_damaged(name, directory, path, data.draw(st.lists(EDITS, min_size=1, max_size=3)))


@pytest.mark.parametrize(("name", "file", "edits"), CORPUS)
def test_damage_that_once_broke_a_reader(
    name: str, file: str, edits: list[Edit], tmp_path: Path
) -> None:
    READERS[name].make(tmp_path)
    is_refused = read_damaged(name, tmp_path, tmp_path / file, edits)
    assert is_refused == (name != "run")  # a report skips what it cannot read


def read_damaged(name: str, directory: Path, path: Path, edits: list[Edit]) -> bool:
    """Damages a file, reads the directory and repairs it; returns whether reading failed."""
    content = path.read_bytes()
    try:
        damaged = content
        for edit in edits:
            damaged = apply(edit, damaged)
        path.write_bytes(damaged)
        with warnings.catch_warnings(action="ignore"), limited_resources():
            READERS[name].read(directory)
        OUTCOMES["read"] += 1
        return False
    except UserError as error:
        assert 10 < len(str(error)) < 2000
        OUTCOMES[f"refused ({type(error.__cause__ or error).__name__})"] += 1
        return True
    finally:
        path.write_bytes(content)


def apply(edit: Edit, content: bytes) -> bytes:
    kind, *values = edit
    if kind == "all":
        return values[0].encode()
    if kind in ("leaf", "key"):
        try:
            tree = [json.loads(content)]
        except ValueError:
            return content
        if kind == "key":
            tree[0][values[0]] = values[1]
        else:
            leaves = list(places(tree))
            node, key = leaves[int(values[0] * len(leaves))]
            node[key] = values[1]
        return json.dumps(tree[0]).encode()
    place = int(values[0] * len(content))
    if kind in ("cut", "double"):
        end = int(values[1] * len(content))
        return (
            content[: max(place, end) if kind == "double" else min(place, end)]
            + (content[max(place, end) if kind == "cut" else min(place, end) :])
        )
    changed = bytearray(content)
    if content:
        changed[place] = changed[place] ^ (1 << values[1]) if kind == "flip" else values[1]
    return bytes(changed)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yields all (container, key) of a JSON document."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


@contextmanager
def limited_resources() -> Iterator[None]:
    """Fails after `MAX_SECONDS`, or if peak memory grows by more than `MAX_MEMORY`."""

    def over(*_: object) -> None:
        pytest.fail(f"still running after {MAX_SECONDS} s")

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < MAX_MEMORY
