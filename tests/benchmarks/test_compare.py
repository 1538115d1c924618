"""Turns, ratios and tables, with programs whose calls take scripted seconds."""

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
    """A program that records its turns. Its calls take `seconds`; the last number repeats."""

    def __init__(self, name: str, turns: list[str], *seconds: float, **facts: Any) -> None:
        self.name, self.turns, self.seconds, self.dtype = name, turns, list(seconds), None
        self.facts = {"versions": {name: "1.0"}, "parameters": {"all": 1234}, **facts}

    def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def start(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        self.turns.append(f"{self.name} starts")
        return self.facts

    def run(self, steps: int) -> dict[str, Any]:
        self.turns.append(f"{self.name} {steps}")
        seconds = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return {"seconds": seconds * steps, "peak_memory_gib": 0.0}


def time_case(case: dict[str, Any], *sides: Any, **settings: Any) -> dict[str, Any]:
    record = compare({**case, **settings}, *sides)
    assert record is not None
    return json.loads(json.dumps(record))  # as a line of the results


def test_programs_take_turns() -> None:
    turns: list[str] = []
    ours, peer = Scripted("ours", turns, 0.25), Scripted("peer", turns, 0.5)
    record = time_case(IMAGES, ours, peer, turn_seconds=0.9)
    assert turns[:2] == ["peer starts", "ours starts"]
    assert turns[2:8] == ["peer 1"] * 3 + ["ours 1"] * 3  # the first call and two warm-up calls
    # a turn of 0.9 s needs four calls of 0.25 s; both programs do four; the order alternates
    assert turns[8:] == ["peer 4", "ours 4", "ours 4", "peer 4", "peer 4", "ours 4"]
    assert record["ours"]["seconds"] == [0.25] * 3
    assert record["ratio"] == [2.0] * 3


def test_ratios_compare_calls_of_the_same_round() -> None:
    ours = Scripted("ours", [], 7.0, 1.0, 2.0, 4.0)
    peer = Scripted("peer", [], 9.0, 3.0, 2.0, 8.0)
    record = time_case(IMAGES, ours, peer, warmup=0)
    assert record["ratio"] == [3.0, 1.0, 2.0]  # the ratio of the medians would be 3 / 2
    assert record["ours"]["first_seconds"] == [7.0]
    assert record["ours"]["per_second"] == 1.0  # two images in 2 s, the median
    assert record["peer"]["seconds"] == [3.0, 2.0, 8.0]


def test_first_calls_are_reported_separately() -> None:
    record = time_case(IMAGES, Scripted("ours", [], 7.0, 6.0, 5.0, 4.0), rounds=1)
    assert record["ours"]["seconds"] == [4.0]
    assert record["ours"]["first_seconds"] == [7.0, 6.0, 5.0]


def test_another_architecture_raises_an_error() -> None:
    ours = Scripted("ours", [], 1.0, parameters={"autoencoder": 10, "perceptual": 3})
    peer = Scripted("peer", [], 1.0, parameters={"autoencoder": 11})
    with pytest.raises(ProgramError, match=r"another architecture: its auto.* has 11 "):
        time_case(IMAGES, ours, peer)


def test_tokens_per_second() -> None:
    assert time_case(TOKENS, Scripted("ours", [], 2.0))["ours"]["per_second"] == 2 * 9 / 2.0


@pytest.mark.parametrize(
    ("compiled", "first", "images"),
    [
        # compilation takes 30 − 2 s more than an eager first call; each later call saves 0.5 s
        (0.5, 30.0, "114 images"),
        (0.5, 30.1, "116 images"),  # rounds up to a whole call
        (0.5, 1.0, "2 images"),  # already compiled
        (1.5, 30.0, "never"),
    ],
)
def test_images_after_which_compilation_pays(compiled: float, first: float, images: str) -> None:
    eager = time_case(TOKENS, Scripted("ours", [], 2.0, 1.0))
    record = time_case(TOKENS, Scripted("ours", [], first, compiled), measurement="sample_compiled")
    assert pays_after(record["ours"], eager["ours"], 2) == images
    lines = table(
        [time_case({**TOKENS, "name": "large"}, Scripted("ours", [], 9.0)), eager, record]
    )
    assert [line.endswith(f"  {images}") for line in lines.splitlines()[:4]] == [False] * 3 + [True]


def test_the_table() -> None:
    ours = Scripted("taming", [], 7.0, 1.0, 2.0, 4.0)
    other = Scripted("other", [], 7.0, 3.0, 2.0, 8.0)
    alone = Scripted("taming", [], 7.0, 0.011, 0.012, 0.013)
    records = [
        time_case(IMAGES, ours, other, warmup=0),
        time_case(IMAGES, alone, measurement="encode"),
    ]
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
    encode = "tiny encode taming float32 0.013 (0.013–0.013) 153.8 7, 0.011, 0.012 1,234"
    assert " ".join(row.split()) == encode


def test_numbers() -> None:
    assert [number(value) for value in (14993.2, 1.30, 0.012344)] == ["14990", "1.3", "0.01234"]
    assert spread([3.0, 1.0, 2.0]) == "2 (1–3)"
    assert aligned([{"a": "1", "b": ""}, {"a": "22", "b": ""}]) == "a\n1\n22"
    assert aligned([]) == ""


def test_inputs_are_the_same_for_all_programs() -> None:
    tokens = random_inputs({**TOKENS, "num_tokens": 400})
    assert tokens.shape == (2, 400)
    assert tokens.unique().tolist() == list(range(16))  # every code
    images = random_inputs(IMAGES)
    assert images.shape == (2, 3, 16, 16)
    assert torch.equal(images, random_inputs(IMAGES))
    assert -1 <= images.min() < -0.9 < 0.9 < images.max() <= 1


def test_counts_operations_of_forward_and_backward_passes() -> None:
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


def test_a_result_of_nan_is_an_error() -> None:
    side = Session(lambda *arguments: (lambda: torch.tensor(torch.nan), {"versions": {}}))
    side.start(IMAGES)
    with pytest.raises(FloatingPointError):
        side.run(1)
