"""Options of sampling, and what Python users get wrong: a message, not a traceback."""

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


@pytest.fixture
def generator() -> ImageGenerator:
    return tiny(ClassLabel(3, dropout=0.1, class_names=["cat", "dog", "owl"]), 2)


def test_a_square_grid_is_one_number(generator: ImageGenerator) -> None:
    square = generator.sample_tokens(2, options=SamplingOptions(seed=0, grid_size=3))
    assert square.shape == (2, 9)
    for size in ((3, 3), [3, 3], np.int64(3), tuple(np.array([3, 3]))):
        options = SamplingOptions(seed=0, grid_size=size)
        assert torch.equal(square, generator.sample_tokens(2, options=options))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("grid_size", [(3,), (3, 2.5), (0, 3)]),
        ("temperature", [-1.0, math.nan]),
        ("top_k", [0, 2.5]),
        ("top_p", [0.0, 1.1]),
        ("seed", [-1]),
        ("batch_size", [0]),
        ("beams", [2]),
    ],
)
def test_options_out_of_range(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"SamplingOptions\n{name}"):
            SamplingOptions(**{name: value})


def test_arguments_and_options_are_the_same(generator: ImageGenerator) -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 3}
    options = SamplingOptions(**settings, guidance=Guidance(2.0))
    drawn = generator.sample_tokens(2, LABELS, options=options)
    same = generator.sample_tokens(2, LABELS, 0.9, 5, 0.9, 2.0, False, 3)
    assert torch.equal(drawn, same)
    with pytest.raises(UserError, match="inside `options`"):
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
        ({"given_tokens": torch.zeros(3, 1).long()}, "given_tokens are of 3 images, not 2"),
        ({"options": SamplingOptions(stride=3, grid_size=4)}, "stride is 3 .* 1 to 2"),
        ({"condition": None, "guidance_scale": 2}, "pass a condition"),
    ],
)
def test_arguments_that_cannot_be(
    generator: ImageGenerator, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generator.sample_tokens(**{"num_images": 2, "condition": LABELS, **arguments})


def test_guidance_needs_condition_dropout(generator: ImageGenerator) -> None:
    generator.conditioning.dropout = 0.0
    with pytest.raises(UserError, match="guidance needs a model trained with condition_dropout"):
        generator.sample_tokens(2, LABELS, guidance_scale=2.0)
