"""Turns and numbers, with sides whose calls take as long as they say."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.compare import ProgramError, compare
from benchmarks.peers.serve import Session, count_flops, random_inputs
from benchmarks.table import aligned, number, pays_after, spread, table

OPTIONS = {"device": "cpu", "threads": 1, "dtype": "float32", "rounds": 3}
OPTIONS |= {"warmup": 2, "turn_seconds": 0.0}
IMAGES = {**OPTIONS, "name": "tiny", "measurement": "step", "batch_size": 2, "resolution": 16}
TOKENS = {**OPTIONS, "name": "gpt", "measurement": "sample", "batch_size": 2, "num_tokens": 9}
TOKENS |= {"codebook_size": 16, "guidance_scale": 1.0}


class Scripted:
    """A side that lists its turns; its calls take the given seconds, the last ones for ever."""

    def __init__(self, name: str, turns: list[str], *seconds: float, **facts: Any) -> None:
        self.name, self.turns, self.seconds, self.dtype = name, turns, list(seconds), None
        self.facts = {"versions": {name: "1.0"}, "parameters": {"all": 1234}, **facts}

    def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def begin(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        self.turns.append(f"{self.name} begins")
        return self.facts

    def run(self, steps: int) -> dict[str, Any]:
        self.turns.append(f"{self.name} {steps}")
        seconds = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return {"seconds": seconds * steps, "peak_memory_gib": 0.0}


def timed(case: dict[str, Any], *sides: Any, **settings: Any) -> dict[str, Any]:
    record = compare({**case, **settings}, *sides)
    assert record is not None
    return json.loads(json.dumps(record))  # a line of the results


def test_the_sides_take_turns() -> None:
    turns: list[str] = []
    ours, peer = Scripted("ours", turns, 0.25), Scripted("peer", turns, 0.5)
    record = timed(IMAGES, ours, peer, turn_seconds=0.9)
    assert turns[:2] == ["peer begins", "ours begins"]
    assert turns[2:8] == ["peer 1"] * 3 + ["ours 1"] * 3  # the first call, and two of warm-up
    # four calls of 0.25 s make a turn of 0.9 s, and both sides do as many; then the order turns
    assert turns[8:] == ["peer 4", "ours 4", "ours 4", "peer 4", "peer 4", "ours 4"]
    assert record["ours"]["seconds"] == [0.25] * 3
    assert record["ratio"] == [2.0] * 3


def test_the_ratio_is_of_pairs_in_the_same_round() -> None:
    ours = Scripted("ours", [], 7.0, 1.0, 2.0, 4.0)
    peer = Scripted("peer", [], 9.0, 3.0, 2.0, 8.0)
    record = timed(IMAGES, ours, peer, warmup=0)
    assert record["ratio"] == [3.0, 1.0, 2.0]  # the medians' would be 3 / 2
    assert record["ours"]["first_seconds"] == [7.0]
    assert record["ours"]["per_second"] == 1.0  # two images in the median's 2 s
    assert record["peer"]["seconds"] == [3.0, 2.0, 8.0]


def test_first_calls_are_kept_apart() -> None:
    record = timed(IMAGES, Scripted("ours", [], 7.0, 6.0, 5.0, 4.0), rounds=1)
    assert record["ours"]["seconds"] == [4.0]
    assert record["ours"]["first_seconds"] == [7.0, 6.0, 5.0]


def test_another_architecture_is_not_compared() -> None:
    ours = Scripted("ours", [], 1.0, parameters={"autoencoder": 10, "perceptual": 3})
    peer = Scripted("peer", [], 1.0, parameters={"autoencoder": 11})
    with pytest.raises(ProgramError, match=r"not of the same architecture: its auto.* has 11 "):
        timed(IMAGES, ours, peer)


def test_tokens_a_second() -> None:
    assert timed(TOKENS, Scripted("ours", [], 2.0))["ours"]["per_second"] == 2 * 9 / 2.0


@pytest.mark.parametrize(
    ("compiled", "first", "images"),
    [
        # 30 s of compiling, of which an uncompiled first call takes 2; each later call saves 0.5 s
        (0.5, 30.0, "114 images"),
        (0.5, 30.1, "116 images"),  # a call is whole
        (0.5, 1.0, "2 images"),  # kept from earlier: at once
        (1.5, 30.0, "never"),
    ],
)
def test_when_compiling_pays(compiled: float, first: float, images: str) -> None:
    eager = timed(TOKENS, Scripted("ours", [], 2.0, 1.0))
    record = timed(TOKENS, Scripted("ours", [], first, compiled), measurement="sample_compiled")
    assert pays_after(record["ours"], eager["ours"], 2) == images
    lines = table([timed({**TOKENS, "name": "large"}, Scripted("ours", [], 9.0)), eager, record])
    assert [line.endswith(f"  {images}") for line in lines.splitlines()[:4]] == [False] * 3 + [True]


def test_the_table() -> None:
    ours = Scripted("taming", [], 7.0, 1.0, 2.0, 4.0)
    other = Scripted("other", [], 7.0, 3.0, 2.0, 8.0)
    alone = Scripted("taming", [], 7.0, 0.011, 0.012, 0.013)
    records = [timed(IMAGES, ours, other, warmup=0), timed(IMAGES, alone, measurement="encode")]
    case = {n: v for n, v in IMAGES.items() if n not in ("name", "measurement")} | {"warmup": 0}
    assert table(records[:1]) == (
        "case  measurement  program  dtype    s a call  images/s  first calls, s  parameters  "
        "times ours\n"
        "tiny  step         taming   float32  2 (1–4)   1         7               1,234\n"
        "tiny  step         other    float32  3 (2–8)   0.6667    7               1,234       "
        "2 (1–3)\n"
        "tiny: " + ", ".join(f"{n} {v}" for n, v in case.items()) + "\n"
        "taming: taming 1.0\n"
        "other: other 1.0"
    )
    *_, row, _, _, _ = table(records).splitlines()
    shown = "tiny encode taming float32 0.013 (0.013–0.013) 153.8 7, 0.011, 0.012 1,234"
    assert " ".join(row.split()) == shown


def test_numbers() -> None:
    assert [number(value) for value in (14993.2, 1.30, 0.012344)] == ["14990", "1.3", "0.01234"]
    assert spread([3.0, 1.0, 2.0]) == "2 (1–3)"
    assert aligned([{"a": "1", "b": ""}, {"a": "22", "b": ""}]) == "a\n1\n22"
    assert aligned([]) == ""


def test_all_sides_are_given_the_same_inputs() -> None:
    tokens = random_inputs({**TOKENS, "num_tokens": 400})
    assert tokens.shape == (2, 400)
    assert tokens.unique().tolist() == list(range(16))  # all codes, and no other number
    images = random_inputs(IMAGES)
    assert images.shape == (2, 3, 16, 16)
    assert torch.equal(images, random_inputs(IMAGES))
    assert -1 <= images.min() < -0.9 < 0.9 < images.max() <= 1


def test_operations_are_counted_with_the_backward_pass() -> None:
    images = torch.ones(2, 3, 4, 4)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    forward = 2 * (2 * 4 * 4) * 5 * (3 * 3 * 3)  # multiply and add: outputs × channels × window

    def step() -> None:
        leaf = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(conv(leaf).sum(), leaf)  # of a leaf, as in training
        conv(gradient).sum().backward()

    assert count_flops(step) == 4 * forward
    with torch.inference_mode():
        assert count_flops(lambda: conv(images)) == forward
    assert count_flops(lambda: images.sigmoid()) == 0


def test_a_timing_of_nan_is_an_error() -> None:
    side = Session(lambda *arguments: (lambda: torch.tensor(torch.nan), {"versions": {}}))
    side.begin(IMAGES)
    with pytest.raises(FloatingPointError):
        side.run(1)
