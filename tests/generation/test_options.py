"""Guidance schedules, sampling options, and the messages for wrong arguments."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from every_kind import tiny

from taming.conditioning import ClassLabel
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.runtime.errors import UserError

LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("guidance", "scales"),
    [
        (Guidance(4.0), [4.0] * 5),
        (Guidance(0.0), [0.0, 0.0]),  # the model without condition
        (Guidance(), [1.0] * 3),
        (Guidance(5.0, "linear"), [1.0, 2.0, 3.0, 4.0, 5.0]),
        (Guidance(0.0, "linear"), [1.0, 0.5, 0.0]),
        (Guidance(5.0, "linear"), [1.0]),
        # 1 + 4 (1 - cos πi/4) / 2, with the cosines 1, √½, 0, -√½ at i = 0 … 3
        (Guidance(5.0, "power_cosine"), [1.0, 3 - math.sqrt(2), 3.0, 3 + math.sqrt(2)]),
        # the interval is half open, in fractions of the image; an end of 1 includes the last token
        (Guidance(3.0, interval=(0.25, 0.75)), [1, 1, 3, 3, 3, 3, 1, 1]),
        (Guidance(3.0, interval=(0.5, 1.0)), [1, 1, 3, 3]),
        (Guidance(3.0, interval=(0.0, 0.5)), [3, 3, 1]),  # 1/3 < 1/2 < 2/3
        # 0.07 · 100 is 7.000000000000001 and 0.56 · 100 is 56.00000000000001
        (Guidance(3.0, interval=(0.07, 0.56)), [1] * 7 + [3] * 49 + [1] * 44),
        # the interval cuts the schedule and does not squeeze it
        (Guidance(5.0, "linear", interval=[0.4, 0.8]), [1.0, 1.0, 3.0, 4.0, 1.0]),
    ],
)
def test_scales_of_a_schedule(guidance: Guidance, scales: list[float]) -> None:
    assert guidance.scales(len(scales)).tolist() == pytest.approx(scales)


def test_power_is_of_the_fraction_of_the_image() -> None:
    assert Guidance(5.0, "linear").scale_at(255, 256) == 5.0
    squared, plain = Guidance(5.0, "power_cosine", power=2.0), Guidance(5.0, "power_cosine")
    assert 4.999 < plain.scale_at(255, 256) < 5.0  # the token after the last one would get 5
    # (1/2)² = 1/4: power 2 in the middle is power 1 after a quarter
    assert squared.scale_at(8, 16) == pytest.approx(plain.scale_at(4, 16))
    # RAR-B, scale 16 and power 2.75, in the middle of 256: 15 (1 - cos(π 0.5^2.75)) / 2 + 1, where
    # 0.5^2.75 = 0.148651 and cos 0.467001 = 0.892923
    rar = Guidance(16.0, "power_cosine", power=2.75)
    assert rar.scale_at(128, 256) == pytest.approx(1.80308, abs=1e-5)
    assert rar.scale_at(0, 256) == 1.0


def test_guided_tokens_reach_from_the_first_to_the_last_scale_that_is_not_one() -> None:
    assert Guidance(3.0, interval=(0.25, 0.75)).guided(8) == range(2, 6)
    assert Guidance(3.0, "linear").guided(8) == range(1, 8)
    assert Guidance(0.5).guided(8) == range(8)
    assert not Guidance().guided(8) and not Guidance(3.0, interval=(0.9, 0.1)).guided(8)


@pytest.mark.parametrize("schedule", ["constant", "linear", "power_cosine"])
def test_guidance_is_off_only_at_scale_one(schedule: Any) -> None:
    off = Guidance(1.0, schedule, power=2.0)
    assert off.is_off and off.scales(7).tolist() == [1.0] * 7
    for scale in (0.0, 0.5, 1.001):
        on = Guidance(scale, schedule, power=2.0)
        assert not on.is_off and on.scale_at(6, 7) != 1


def test_lists_of_a_config_equal_tuples() -> None:
    assert Guidance(2, "constant", 1, [0, 1]) == Guidance(2.0)


@pytest.mark.parametrize(
    ("guidance", "note"),
    [
        (Guidance(), None),
        (Guidance(2.0, "linear"), None),
        (Guidance(schedule="linear"), "guidance_scale=1 is no guidance"),
        (Guidance(2.0, interval=(0.0, 0.25)), "1 for every token that is drawn"),
        (Guidance(2.0, interval=(0.9, 0.1)), "1 for every token that is drawn"),
    ],
)
def test_guidance_without_effect_gives_a_note(guidance: Guidance, note: str | None) -> None:
    notes = guidance.notes(16, num_given=4)
    assert (len(notes) == 1 and note in notes[0]) if note else notes == []


@pytest.mark.parametrize(
    ("options", "name", "values"),
    [
        (Guidance, "scale", [-1.0, math.nan]),
        (Guidance, "schedule", ["cosine"]),
        (Guidance, "power", [0.0]),
        (Guidance, "interval", [(-0.1, 1.0), (0.0, 1.1), (0.0, 0.5, 1.0)]),
        (Guidance, "strength", [1.0]),
        (SamplingOptions, "grid_size", [(3,), (3, 2.5), (0, 3)]),
        (SamplingOptions, "temperature", [-1.0, math.nan]),
        (SamplingOptions, "top_k", [0, 2.5]),
        (SamplingOptions, "top_p", [0.0, 1.1]),
        (SamplingOptions, "seed", [-1]),
        (SamplingOptions, "batch_size", [0]),
        (SamplingOptions, "beams", [2]),
    ],
)
def test_values_out_of_range(options: type, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{options.__name__}\n{name}"):
            options(**{name: value})


@pytest.fixture
def generator() -> ImageGenerator:
    return tiny(ClassLabel(3, dropout=0.1, class_names=["cat", "dog", "owl"]), 2)


def test_a_square_grid_is_one_number(generator: ImageGenerator) -> None:
    square = generator.sample_tokens(2, options=SamplingOptions(seed=0, grid_size=3))
    assert square.shape == (2, 9)
    for size in ((3, 3), [3, 3], np.int64(3), tuple(np.array([3, 3]))):
        options = SamplingOptions(seed=0, grid_size=size)
        assert torch.equal(square, generator.sample_tokens(2, options=options))


def test_arguments_and_options_are_equivalent(generator: ImageGenerator) -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 3}
    options = SamplingOptions(**settings, guidance=Guidance(2.0))
    tokens = generator.sample_tokens(2, LABELS, options=options)
    same = generator.sample_tokens(2, LABELS, 0.9, 5, 0.9, 2.0, False, 3)
    assert torch.equal(tokens, same)
    with pytest.raises(UserError, match="in `options`"):
        generator.sample_tokens(2, LABELS, temperature=0.9, options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_images": 0}, "num_images is 0"),
        ({"condition": torch.tensor([0, 3])}, "class label 3 does not exist"),
        ({"top_p": 1.5}, "top_p is 1.5: Input should be less than or equal to 1"),
        ({"guidance_scale": -1.0}, "scale is -1.0: Input should be greater than or equal to 0"),
        ({"given_tokens": torch.tensor([[0.9], [1.0]])}, "float32.* whole numbers"),
        ({"given_tokens": torch.tensor([[0], [8]])}, "0 to 8, .* 0 to 7"),
        ({"given_tokens": torch.zeros(2, 5).long()}, r"shape \(2, 5\)\. .* at most 4"),
        ({"given_tokens": torch.zeros(3, 1).long()}, "given_tokens has 3 rows for 2 images"),
        ({"options": SamplingOptions(stride=3, grid_size=4)}, "stride is 3, .* 1 to 2"),
        ({"condition": None, "guidance_scale": 2}, "pass a condition"),
    ],
)
def test_arguments_out_of_range(
    generator: ImageGenerator, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generator.sample_tokens(**{"num_images": 2, "condition": LABELS, **arguments})


def test_guidance_needs_condition_dropout(generator: ImageGenerator) -> None:
    generator.conditioning.dropout = 0.0
    with pytest.raises(UserError, match="guidance needs a model trained with condition_dropout"):
        generator.sample_tokens(2, LABELS, guidance_scale=2.0)
