import math
from typing import Any

import pytest

from taming.generation.options import Guidance


def test_constant() -> None:
    assert Guidance(4.0).scales(5).tolist() == [4.0] * 5
    assert Guidance(0.0).scales(2).tolist() == [0.0, 0.0]  # the model without condition
    assert Guidance().scales(3).tolist() == [1.0] * 3


def test_linear_grows_from_one_to_the_scale() -> None:
    guidance = Guidance(5.0, "linear")
    assert guidance.scales(5).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert guidance.scale_at(255, 256) == 5.0
    assert guidance.scale_at(0, 1) == 1.0
    assert Guidance(0.0, "linear").scales(3).tolist() == [1.0, 0.5, 0.0]


def test_power_cosine_of_power_one_is_half_a_cosine_wave() -> None:
    guidance = Guidance(5.0, "power_cosine")
    # 1 + 4 (1 - cos πi/4) / 2, cos being 1, √½, 0, -√½ at i = 0 … 3
    half = math.sqrt(0.5)
    expected = [1.0, 3 - 2 * half, 3.0, 3 + 2 * half]
    assert guidance.scales(4).tolist() == pytest.approx(expected)
    # the scale itself would come just after the last token
    assert 4.999 < guidance.scale_at(255, 256) < 5.0


def test_power_is_of_the_fraction_of_the_image() -> None:
    # (1/2)² = 1/4 is where power 1 is after a quarter
    squared, plain = Guidance(5.0, "power_cosine", power=2.0), Guidance(5.0, "power_cosine")
    assert squared.scale_at(8, 16) == pytest.approx(plain.scale_at(4, 16))
    # RAR-B, scale 16 and power 2.75, in the middle of 256: 15 (1 - cos(π 0.5^2.75)) / 2 + 1, where
    # 0.5^2.75 = 0.148651 and cos 0.467001 = 0.892923
    rar = Guidance(16.0, "power_cosine", power=2.75)
    assert rar.scale_at(128, 256) == pytest.approx(1.80308, abs=1e-5)
    assert rar.scale_at(0, 256) == 1.0


def test_interval_is_half_open_in_fractions_of_the_image() -> None:
    assert Guidance(3.0, interval=(0.25, 0.75)).scales(8).tolist() == [1, 1, 3, 3, 3, 3, 1, 1]
    assert Guidance(3.0, interval=(0.5, 1.0)).scales(4).tolist() == [1, 1, 3, 3]  # with the last
    assert Guidance(3.0, interval=(0.0, 0.5)).scales(3).tolist() == [3, 3, 1]  # 1/3 < 1/2 < 2/3
    # 0.07 · 100 is 7.000000000000001 and 0.56 · 100 is 56.00000000000001
    inside = (Guidance(3.0, interval=(0.07, 0.56)).scales(100) == 3).nonzero().flatten()
    assert inside.tolist() == list(range(7, 56))


def test_guided_tokens_are_those_from_the_first_to_the_last_whose_scale_is_not_one() -> None:
    assert Guidance(3.0, interval=(0.25, 0.75)).guided(8) == range(2, 6)
    assert Guidance(3.0, "linear").guided(8) == range(1, 8)
    assert Guidance(0.5).guided(8) == range(8)
    assert not Guidance().guided(8) and not Guidance(3.0, interval=(0.9, 0.1)).guided(8)


def test_interval_cuts_the_schedule_and_does_not_squeeze_it() -> None:
    whole = Guidance(5.0, "linear").scales(5)
    cut = Guidance(5.0, "linear", interval=[0.4, 0.8]).scales(5)
    assert cut.tolist() == [1.0, 1.0, *whole[2:4].tolist(), 1.0]


def test_every_schedule_is_off_at_scale_one_and_only_there() -> None:
    for schedule in ("constant", "linear", "power_cosine"):
        off = Guidance(1.0, schedule, power=2.0)
        assert off.is_off and off.scales(7).tolist() == [1.0] * 7
        for scale in (0.0, 0.5, 1.001):
            on = Guidance(scale, schedule, power=2.0)
            assert not on.is_off and on.scale_at(6, 7) != 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("scale", [-1.0, math.nan]),
        ("schedule", ["cosine"]),
        ("power", [0.0]),
        ("interval", [(-0.1, 1.0), (0.0, 1.1), (0.0, 0.5, 1.0)]),
        ("strength", [1.0]),
    ],
)
def test_values_out_of_range(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"Guidance\n{name}"):
            Guidance(**{name: value})


def test_lists_of_a_config_are_the_same_as_tuples() -> None:
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
def test_what_has_no_effect_is_noted(guidance: Guidance, note: str | None) -> None:
    notes = guidance.notes(16, num_given=4)
    assert (len(notes) == 1 and note in notes[0]) if note else notes == []
