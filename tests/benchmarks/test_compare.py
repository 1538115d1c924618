"""Turns and numbers, with sides whose calls take as long as they say."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.compare import ProgramError, break_even, compare, spread, work_of
from benchmarks.peers.serve import Session, count_flops, random_inputs
from benchmarks.table import table

IMAGES = {"name": "tiny", "batch_size": 2, "resolution": 16}
TOKENS = {"name": "gpt", "batch_size": 2, "num_tokens": 9, "codebook_size": 16}
TOKENS |= {"guidance_scale": 1.0}
OPTIONS = {"device": "cpu", "threads": 1, "dtype": "float32", "tf32": False, "rounds": 3}
OPTIONS |= {"warmup": 2, "turn_seconds": 0.0, "peak_tflops": None, "peak_bandwidth_gbs": None}


class Scripted:
    """A side that lists its turns; its calls take the given seconds, the last ones for ever."""

    def __init__(self, name: str, turns: list[str], *seconds: float, **facts: Any) -> None:
        self.name, self.turns, self.seconds, self.precision = name, turns, list(seconds), {}
        known = {"processor": "abacus", "torch": "2.99"}
        self.facts = {**known, "versions": {name: "1.0"}, "parameters": {"all": 1234}, **facts}

    def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        self.turns.append(f"{self.name} begins")
        return self.facts

    def run(self, steps: int) -> dict[str, Any]:
        self.turns.append(f"{self.name} {steps}")
        seconds = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return {"seconds": seconds * steps, "peak_memory_gib": None}

    def flops(self) -> int:
        return 4 * 10**12


def timed(case: dict, measurement: str, *sides: Any, **options: Any) -> dict[str, Any]:
    record = compare(case, measurement, {**OPTIONS, **options}, *sides)
    assert record is not None
    return json.loads(json.dumps({**record, "break_even": None}))  # a line of the results


def test_the_sides_take_turns() -> None:
    turns: list[str] = []
    ours, peer = Scripted("ours", turns, 0.25), Scripted("peer", turns, 0.5)
    record = timed(IMAGES, "step", ours, peer, turn_seconds=0.9)
    assert turns[:2] == ["peer begins", "ours begins"]
    assert turns[2:8] == ["peer 1"] * 3 + ["ours 1"] * 3  # the first call, and two of warm-up
    # four calls of 0.25 s make a turn of 0.9 s, and both sides do as many; then the order turns
    assert turns[8:] == ["ours 4", "peer 4", "peer 4", "ours 4", "ours 4", "peer 4"]
    assert record["ours"]["seconds"]["rounds"] == [0.25] * 3
    assert record["steps_per_round"] == 4
    assert record["ratio"]["median"] == 2.0


def test_the_ratio_is_of_pairs_in_the_same_round() -> None:
    ours = Scripted("ours", [], 7.0, 1.0, 2.0, 4.0)
    peer = Scripted("peer", [], 9.0, 3.0, 2.0, 8.0)
    record = timed(IMAGES, "step", ours, peer, warmup=0)
    # the rounds' ratios are 3, 1 and 2; the medians' would be 3 / 2
    assert record["ratio"] == {"median": 2.0, "least": 1.0, "greatest": 3.0}
    assert record["ours"]["first_seconds"] == 7.0
    assert record["ours"]["second_seconds"] is None
    assert record["ours"]["images_per_second"] == 1.0  # two images in the median's 2 s
    assert record["peer"]["seconds"]["rounds"] == [3.0, 2.0, 8.0]


def test_a_long_case_has_rounds_of_its_own() -> None:
    record = timed(IMAGES | {"rounds": 1}, "step", Scripted("ours", [], 7.0, 6.0, 5.0, 4.0))
    assert record["ours"]["seconds"]["rounds"] == [4.0]
    assert record["ours"]["first_seconds"] == 7.0 and record["ours"]["second_seconds"] == 6.0


def test_another_architecture_is_not_compared() -> None:
    ours = Scripted("ours", [], 1.0, parameters={"autoencoder": 10, "perceptual": 3})
    peer = Scripted("peer", [], 1.0, parameters={"autoencoder": 11})
    with pytest.raises(ProgramError, match=r"not of the same architecture: its auto.* has 11 "):
        timed(IMAGES, "step", ours, peer)


def test_shares_of_what_the_device_can_do() -> None:
    ours = Scripted("ours", [], 2.0)
    record = timed(IMAGES, "step", ours, peak_tflops=8.0, peak_bandwidth_gbs=90.0)
    assert (record["flops"], record["share_of_peak"]) == (4 * 10**12, 0.25)  # 4 of 2 s × 8
    assert record["share_of_bandwidth"] is None
    # 45 GB in 2 s: 22.5 of 90 GB/s
    sampling = Scripted("ours", [], 2.0, bytes_read=45 * 10**9)
    record = timed(TOKENS, "sample", sampling, peak_tflops=8.0, peak_bandwidth_gbs=90.0)
    assert record["share_of_bandwidth"] == pytest.approx(0.25)
    assert record["flops"] is None  # memory is its limit


def test_what_a_call_gets_done() -> None:
    assert work_of(IMAGES, "encode") == {"images": 2}
    assert work_of(TOKENS, "sample") == {"tokens": 18}  # two images of nine
    assert work_of(TOKENS, "gpt_step") == {"steps": 1, "tokens": 18}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "least": 1.0, "greatest": 3.0}


@pytest.mark.parametrize(
    ("compiled", "first", "calls"),
    [
        # 30 s of compiling, of which an uncompiled first call takes 2; each later call saves 0.5 s
        (0.5, 30.0, 1 + 56),
        (0.5, 30.1, 1 + 57),  # a call is whole
        (0.5, 1.0, 1),  # kept from earlier: at once
        (1.5, 30.0, None),
    ],
)
def test_break_even(compiled: float, first: float, calls: int | None) -> None:
    eager = timed(TOKENS, "sample", Scripted("ours", [], 2.0, 1.0))
    other = timed({**TOKENS, "name": "large"}, "sample", Scripted("ours", [], 2.0, 9.0))
    ours = timed(TOKENS, "sample_compiled", Scripted("ours", [], first, compiled))
    expected = {"images": "never", "tokens": "never"}
    if calls is not None:
        expected = {"images": 2 * calls, "tokens": 18 * calls}
    assert break_even(ours, [other, eager]) == expected
    assert break_even(ours, [other]) is None
    assert break_even(eager, [eager]) is None  # not compiled


def test_the_table() -> None:
    ours = Scripted("taming", [], 7.0, 1.0, 2.0, 4.0)
    other = Scripted("other", [], 7.0, 3.0, 2.0, 8.0)
    alone = Scripted("taming", [], 7.0, 0.011, 0.012, 0.013)
    records = [
        timed(IMAGES, "step", ours, other, warmup=0),
        timed(IMAGES, "encode", alone, warmup=0),
    ]
    assert table(records) == (
        "on cpu; processor abacus; 1 threads\n"
        "ms a call, median of the rounds (least–greatest);\n"
        "ratio: the peer's time over ours round by round, above 1 ours is faster\n"
        "  taming  float32; torch 2.99, taming 1.0\n"
        "  other   float32; torch 2.99, other 1.0\n"
        "\n"
        "tiny: images 2×3×16×16; 3 rounds; 1,234 parameters: all 1,234\n"
        "                                 peer   taming ms         peer ms           "
        "ratio             images/s    first call s\n"
        "training step, discriminator on  other  2000 (1000–4000)  3000 (2000–8000)  "
        "2.00 (1.00–3.00)  1 : 0.6667  7.00 : 7.00\n"
        "encode                                  12.0 (11.0–13.0)                    "
        "                  166.7       7.00"
    )
    compiled = timed(TOKENS, "sample_compiled", Scripted("taming", [], 0.5))
    lines = table([{**compiled, "break_even": {"images": 2604, "tokens": 41}}]).splitlines()
    assert lines[-3].startswith("gpt: tokens 2×9; 3 rounds; 1,234 parameters")
    assert lines[-1].split("  ")[-1] == "2,604 images, 41 tokens"


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
    side = Session(lambda *arguments: (lambda: torch.tensor(float("nan")), {}))
    side.begin({**OPTIONS, **IMAGES}, "step")
    with pytest.raises(FloatingPointError):
        side.run(1)
