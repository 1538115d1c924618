"""What the Python interface is given by mistake: a message in place of a traceback."""

from typing import Any

import numpy as np
import pytest
import torch

from taming.conditioning import ClassLabel
from taming.errors import UserError
from taming.generation import ImageGenerator, sample_best
from taming.transformer import GPT

CONDITIONING = ClassLabel(3, dropout=0.1)


def gpt(**changes: Any) -> GPT:
    torch.manual_seed(0)
    sizes = {"codebook_size": 8, "num_layers": 1, "num_heads": 2, "embed_dim": 16}
    return GPT(**{**CONDITIONING.transformer_config((2, 2)), **sizes, **changes})


@pytest.fixture
def generator() -> ImageGenerator:
    return ImageGenerator(None, gpt(), CONDITIONING, 2).eval()


def test_a_square_grid_is_one_number(generator: ImageGenerator) -> None:
    square = generator.sample_tokens(2, seed=0, grid_size=3)
    assert square.shape == (2, 9)
    for size in ((3, 3), [3, 3], np.int64(3), tuple(np.array([3, 3]))):
        assert torch.equal(square, generator.sample_tokens(2, seed=0, grid_size=size))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid_size": (3,)}, r"grid_size is \(3,\) and must be \(height, width\)"),
        ({"grid_size": (3, 2.5)}, r"grid_size is \(3, 2\.5\)"),
        ({"grid_size": 3.0}, r"grid_size is 3\.0"),
        ({"grid_size": True}, "grid_size is True"),
        ({"grid_size": (0, 3)}, r"grid_size is \(0, 3\)"),
        ({"top_k": True}, "top_k is True and must be a whole number"),
        ({"guidance_scale": 2.0, "guidance_interval": 0.5}, r"guidance_interval is \[0\.5\]"),
        ({"first_image": -1}, "first_image is -1 and must not be negative"),
        ({"condition": [0, 1]}, r"condition is \[0, 1\] and must be a tensor"),
        ({"condition": 1}, "condition is 1 and must be a tensor"),
        ({"given_tokens": [[0], [1]]}, "given_tokens is .* must be a tensor"),
        ({"given_tokens": torch.tensor([[0.9], [1.0]])}, "whole numbers, and these are .*float32"),
    ],
)
def test_of_a_generator(generator: ImageGenerator, arguments: dict[str, Any], message: str) -> None:
    given = {"condition": torch.tensor([0, 1]), **arguments}
    with pytest.raises(UserError, match=message):
        generator.sample_tokens(2, **given)


def test_no_given_tokens_are_of_any_type(generator: ImageGenerator) -> None:
    drawn = generator.sample_tokens(2, seed=0, given_tokens=torch.empty(2, 0))
    assert torch.equal(drawn, generator.sample_tokens(2, seed=0))


def test_of_rejection_sampling(generator: ImageGenerator) -> None:
    labels: Any = torch.tensor([0, 1])
    for condition, first_image, message in (
        ([0, 1], 0, "condition is .* must be a tensor"),
        (labels, -1, "first_image is -1"),
    ):
        with pytest.raises(UserError, match=message):
            sample_best(generator, torch.nn.Identity(), 2, condition, 2, first_image=first_image)


@pytest.mark.parametrize(
    "name",
    ["codebook_size", "num_prefix_ids", "context_length", "num_layers", "num_heads", "embed_dim",
     "feed_forward_dim"],
)  # fmt: skip
def test_of_a_transformer(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name} is 0: a transformer needs at least 1"):
        gpt(**{name: 0})
