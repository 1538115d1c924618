"""From logits to tokens: guidance, filters, random numbers."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from taming.generation import Guidance
from taming.generation.choice import (
    TokenChoice,
    apply_temperature,
    filter_logits,
    guide,
    keep_top_p,
    random_numbers,
    sample_by_inverse_cdf,
    top_k_tokens,
)

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


def surviving(logits: torch.Tensor) -> list[int]:
    return logits.isfinite().nonzero()[:, -1].tolist()


def filtered(logits: torch.Tensor, *filters: Any, **named: Any) -> torch.Tensor:
    """The result of `filter_logits` as `(… v)` again."""
    result, tokens = filter_logits(logits, *filters, **named)
    if tokens is None:
        return result
    return torch.full(logits.shape, -math.inf).scatter(-1, tokens, result)


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    tokens = top_k_tokens(logits, min(k, logits.shape[-1]))
    assert (tokens.diff() > 0).all()
    return torch.full_like(logits, -math.inf).scatter(-1, tokens, logits.gather(-1, tokens))


@pytest.mark.parametrize(
    ("keep", "limit", "expected"),
    [
        *((keep_top_k, k, expected) for k, expected in (
            (1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (99, [0, 1, 2, 3])
        )),
        *((keep_top_p, p, expected) for p, expected in (
            (1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3]),
            (1, [0, 1, 2, 3]),
        )),
    ],
)  # fmt: skip
def test_the_most_probable_are_kept_as_they_are(keep, limit: float, expected: list[int]) -> None:
    result = keep(LOGITS, limit)
    assert surviving(result) == expected
    assert torch.equal(result[0, expected], LOGITS[0, expected])


def test_top_p_of_one_keeps_tokens_that_rounding_would_lose() -> None:
    logits = torch.full((1, 1000), -30.0)
    logits[0, 0] = 0.0
    assert len(surviving(keep_top_p(logits, 1.0))) == 1000


def test_filters_together_and_alone() -> None:
    assert surviving(filtered(LOGITS)) == [0, 1, 2, 3]
    assert surviving(filtered(LOGITS, top_p=0.41)) == [1, 3]  # without any top-k
    assert surviving(filtered(LOGITS, top_k=3)) == [1, 2, 3]
    # top-p sees what temperature and top-k have left: 0.4, 0.3 of 0.7 are 0.57, 0.43
    assert surviving(filtered(LOGITS, top_k=2, top_p=0.5)) == [1]
    assert surviving(filtered(LOGITS, top_k=2, top_p=0.6)) == [1, 3]
    # at temperature 0.5 the probabilities are 1, 16, 4, 9 of 30
    assert surviving(filtered(LOGITS, temperature=0.5, top_p=0.8)) == [1, 3]
    assert surviving(filtered(LOGITS, temperature=1.0, top_p=0.8)) == [1, 2, 3]


def test_extreme_temperatures() -> None:
    """The smallest leave the most probable tokens, the largest make all equal not ruled out."""
    logits = torch.tensor([[0.0, 2.0, -torch.inf, 2.0]])
    for temperature in (0.0, 1e-50, 1e-39, 1e-30):  # the second is 0 in float32
        probabilities = filtered(logits, temperature, top_k=3, top_p=0.99).softmax(-1)
        assert probabilities.tolist() == [[0.0, 0.5, 0.0, 0.5]]
    logits[0, 3] = -30.0
    for temperature in (1e30, 1e39, math.inf):
        probabilities = apply_temperature(logits, temperature).softmax(-1)
        assert probabilities[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3])


@pytest.mark.parametrize("p", [1e-50, 1e-9])  # float32 takes the first for 0, float16 both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_top_p_always_keeps_the_most_probable(p: float, dtype: torch.dtype) -> None:
    assert surviving(keep_top_p(LOGITS.to(dtype), p)) == [1]
    assert surviving(keep_top_p(torch.zeros(1, 1, dtype=dtype), p)) == [0]  # a vocabulary of one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_filtered_as_its_float32_values(dtype: torch.dtype) -> None:
    # far from 0 the difference to the greatest would be rounded to 8 or 11 bits, and a sum of
    # 1000 probabilities would stop where one more is below half the last bit
    logits = (100 + 10 * torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))).to(dtype)
    for top_k, top_p in ((None, None), (None, 0.999), (500, None), (500, 0.9)):
        result = filtered(logits, 1.3, top_k, top_p)
        assert result.dtype == torch.float32
        assert torch.equal(result, filtered(logits.float(), 1.3, top_k, top_p))
    assert torch.equal(
        keep_top_p(logits, 0.999).isfinite(), keep_top_p(logits.float(), 0.999).isfinite()
    )


def in_order(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@pytest.mark.parametrize("seed", range(5))
def test_properties_on_rows_with_ties_and_ruled_out_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (40, 12), generator=generator).float()  # many ties
    logits[torch.rand(40, 12, generator=generator) < 0.3] = -torch.inf
    logits[:, 5] = 1.0  # no row is ruled out as a whole
    for temperature, top_k, top_p in ((1.0, 4, 1.0), (0.7, 12, 0.8), (2.0, 5, 0.6), (1.0, 1, 0.01)):
        result = filtered(logits, temperature, top_k, top_p)
        assert not result.isnan().any()
        for before, after in zip(logits.tolist(), result.tolist(), strict=True):
            weights = [math.exp(value / temperature) for value in before]
            candidates = [token for token in in_order(before)[:top_k] if weights[token] > 0]
            total = sum(weights[token] for token in candidates)
            expected, reached = [], 0.0
            for token in candidates:
                if top_p == 1.0 or reached < top_p - 1e-6:
                    expected.append(token)
                reached += weights[token] / total
            survivors = [token for token, value in enumerate(after) if value > -math.inf]
            assert survivors == sorted(expected)
            # and their odds are those before the filter
            for token in survivors:
                difference = (before[token] - before[survivors[0]]) / temperature
                assert after[token] - after[survivors[0]] == pytest.approx(difference, abs=1e-5)


def test_random_numbers_belong_to_seed_and_image() -> None:
    numbers = random_numbers(5, range(4), 100)
    assert numbers.shape == (4, 100) and numbers.dtype == torch.float64
    assert torch.equal(random_numbers(5, [2], 100), numbers[2:3])
    assert torch.equal(random_numbers(5, [3], 10), numbers[3:, :10])  # a longer image begins alike
    assert len(numbers.unique()) == 400
    assert not torch.equal(random_numbers(6, range(4), 100), numbers)
    many = random_numbers(0, range(2000), 1)
    assert abs(many.mean().item() - 0.5) < 0.02 and many.min() >= 0 and many.max() < 1


@pytest.mark.parametrize("top_p", [None, 0.8])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_a_choice_among_k_is_that_among_all_with_the_others_ruled_out(
    top_p: float | None, scale: float
) -> None:
    """For the same random numbers, on bf16 logits, which have many ties."""
    logits = random_logits(0, scale).bfloat16()
    uniforms = random_numbers(0, range(16), 50)
    for top_k in (1, 2, 30, 257):
        choose = TokenChoice(uniforms, top_k=top_k, top_p=top_p, temperature=0.8)
        for number in torch.arange(50).split(1):
            everything = filtered(logits.float(), 0.8, top_k, top_p)
            expected = sample_by_inverse_cdf(everything, uniforms[:, int(number)])
            assert torch.equal(choose(logits[:, None], number), expected[:, None])


def test_behind_top_k_nothing_is_as_wide_as_the_codebook() -> None:
    """Counted: operations on all logits, in float64 none of them."""
    logits, uniforms = torch.randn(2, 4096), random_numbers(0, range(2), 3)
    choose = TokenChoice(uniforms, top_k=50, top_p=0.9)
    with Widths() as widths:
        choose(logits[:, None], torch.zeros(1, dtype=torch.int64))
    assert widths.wide_double == 0 and widths.wide <= 8  # top-k and its ties


class Widths(TorchDispatchMode):
    """Counts the operations whose result is as wide as the codebook."""

    wide = wide_double = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-1:] == (4096,):
            self.wide += 1
            self.wide_double += result.dtype == torch.float64
        return result


def test_inverse_cdf_at_its_borders() -> None:
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log().expand(6, -1)
    largest = math.nextafter(1.0, 0.0)
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, largest], dtype=torch.float64)
    # token 0 is impossible even for 0, token 5 even for the largest number below 1
    assert sample_by_inverse_cdf(logits, uniform).tolist() == [1, 1, 3, 3, 4, 4]


def random_logits(seed: int, scale: float = 5.0) -> torch.Tensor:
    return scale * torch.randn(16, 257, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 1.1, 4.0, 16.0])
def test_guide_is_the_equation(scale: float) -> None:
    conditional, unconditional = random_logits(0), random_logits(1)
    difference = conditional.double() - unconditional.double()
    exact = unconditional.double() + scale * difference
    # a rounding, 2^-24 of its value, for each of the scale, the two differences, product and sum
    values = conditional.abs() + (scale + abs(scale - 1)) * difference.abs()
    error = (guide(conditional, unconditional, scale) - exact).abs()
    assert bool((error <= 5 * 2**-24 * values).all())


def test_scale_one_gives_the_conditional_logits_bit_for_bit() -> None:
    conditional, unconditional = random_logits(0), random_logits(1, scale=500.0)
    for scale in (1.0, torch.tensor(1.0), torch.ones(1)):
        assert torch.equal(guide(conditional, unconditional, scale), conditional)


@pytest.mark.parametrize("scale", [1.0, 1.1, 3.3, 7.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_guidance_is_in_float32_by_a_number_or_a_tensor(scale: float, dtype: torch.dtype) -> None:
    conditional, unconditional = random_logits(0).to(dtype), random_logits(1).to(dtype)
    expected = guide(conditional.float(), unconditional.float(), scale)
    scales = Guidance(scale).scales(3)
    for each in (scale, scales[1], scales[1:2], torch.tensor([scale], dtype=torch.float64)):
        guided = guide(conditional, unconditional, each)
        assert guided.dtype == torch.float32 and torch.equal(guided, expected)
