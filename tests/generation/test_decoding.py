import math
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from taming.conditioning import Prompt
from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.generation import Steps, TokenChoice, decode_tokens, random_numbers
from taming.generation.choice import sample_by_inverse_cdf
from taming.transformer import GPT, GPTConfig


def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(
        GPTConfig(
            codebook_size=7,
            num_prefix_ids=2,
            context_length=9,
            num_layers=2,
            num_heads=2,
            embed_dim=8,
            dropout=0.5,
        )
    ).eval()


def test_random_numbers_belong_to_seed_and_image() -> None:
    numbers = random_numbers(5, range(4), 100)
    assert numbers.shape == (4, 100) and numbers.dtype == torch.float64
    assert torch.equal(random_numbers(5, [2], 100), numbers[2:3])
    assert torch.equal(random_numbers(5, [3], 10), numbers[3:, :10])  # a longer image begins alike
    assert len(numbers.unique()) == 400
    assert not torch.equal(random_numbers(6, range(4), 100), numbers)
    many = random_numbers(0, range(2000), 1)
    assert abs(many.mean().item() - 0.5) < 0.02 and many.min() >= 0 and many.max() < 1


def test_inverse_cdf_at_its_borders() -> None:
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log().expand(6, -1)
    largest = math.nextafter(1.0, 0.0)
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, largest], dtype=torch.float64)
    # token 0 is impossible even for 0, token 5 even for the largest number below 1
    assert sample_by_inverse_cdf(logits, uniform).tolist() == [1, 1, 3, 3, 4, 4]


def decode(model: GPT, prefix: Tensor, given: Tensor, num_tokens: int, **others: Any) -> Tensor:
    prompt = Prompt(prefix)
    steps = Steps(model, TokenChoice(), prompt, num_tokens)
    return decode_tokens(steps, prompt, given, num_tokens, **others)


def test_greedy_decoding_takes_the_largest_logit_each_time() -> None:
    model, prefix = tiny(), torch.tensor([[0], [1]])
    tokens = decode(model, prefix, torch.empty(2, 0, dtype=torch.int64), 9)
    assert tokens.shape == (2, 9)
    assert torch.equal(model.token_logits(prefix, tokens).argmax(-1), tokens)


def test_given_tokens_are_kept_and_read() -> None:
    model, steps = tiny(), count()
    prefix, given = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[3, 1, 4], [5, 5, 5]])
    tokens = decode(model, prefix, given, 8, on_step=partial(next, steps))
    assert torch.equal(tokens[:, :3], given)
    assert torch.equal(model.token_logits(prefix, tokens).argmax(-1)[:, 3:], tokens[:, 3:])
    assert next(steps) == 5
    assert torch.equal(decode(model, prefix, given, 3), given)


def test_broken_weights_are_noticed() -> None:
    model = tiny()
    model.norm.weight.data[0] = math.nan
    with pytest.raises(UserError, match="NaN"):
        decode(model, torch.tensor([[0]]), torch.empty(1, 0, dtype=torch.int64), 4)


def test_evaluation_mode_gives_each_part_its_own_mode_back() -> None:
    model = tiny().train()
    model.blocks[1].eval()
    before = [part.training for part in model.modules()]
    with pytest.raises(RuntimeError), evaluation_mode(model):
        assert not any(part.training for part in model.modules())
        raise RuntimeError
    assert [part.training for part in model.modules()] == before
    assert any(before) and not all(before)
