"""Models of any order: random orders, several cells per step, any cells given."""

import itertools
from typing import Any

import pytest
import torch
from every_kind import GRID, KINDS, condition, draw, tiny
from scipy.special import chdtri

from taming.conditioning import Unconditional
from taming.generation import ImageGenerator
from taming.generation.choice import TokenChoice, random_numbers
from taming.generation.drawing_order import drawing_order, step_ends
from taming.generation.options import SamplingOptions
from taming.runtime.errors import UserError
from taming.transformer.orders import known_first, order_cells, to_indices

NUM_TOKENS = GRID[0] * GRID[1]
PAIRS = torch.tensor(list(itertools.product(range(4), repeat=2)))  # all images of two codes of 4
every = pytest.mark.parametrize("name", KINDS)


def build_any(name: str, **changes: Any) -> ImageGenerator:
    conditioning, settings = KINDS[name]
    model = tiny(conditioning, **{**settings, "order": "any", "dropout": 0.2, **changes})
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def expected_tokens(
    model: ImageGenerator,
    labels: Any,
    options: SamplingOptions,
    given_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draws each token of each image by itself, without a cache, after all the image knows."""
    cells = drawing_order(options, range(3), GRID).expand(3, -1)
    tokens = torch.full((3, NUM_TOKENS), -1) if given_tokens is None else given_tokens.clone()
    cells = known_first(cells, tokens >= 0)
    assert options.seed is not None
    uniforms = random_numbers(options.seed, range(3), NUM_TOKENS).gather(1, cells)
    for row in range(3):
        image = slice(row, row + 1)
        choose = TokenChoice(uniforms[image])
        own = None if labels is None else labels[image]
        prompt = model.prompt(model.encode_condition(own, GRID), 1)
        sequence = tokens[row, cells[row]]
        start = int((sequence >= 0).sum())
        for end in step_ends(NUM_TOKENS, options.num_steps):
            for number in range(start, end):
                queried = torch.cat([cells[row, :start], cells[row, number : number + 1]])[None]
                known_tokens = torch.nn.functional.pad(sequence[:start], (0, 1))[None]
                logits = model.transformer.token_logits(
                    prompt.prefix, known_tokens, prompt.context, cells=queried
                )
                sequence[number] = choose(logits[:, -1:], torch.tensor([number]))
            start = max(start, end)
        tokens[row, cells[row]] = sequence
    return tokens


@every
@pytest.mark.parametrize("order", ["raster", "random", "halton"])
@torch.no_grad()
def test_cached_decoding_equals_uncached_in_every_order(name: str, order: Any) -> None:
    model, labels = build_any(name), condition(name)
    options = SamplingOptions(seed=6, order=order)
    tokens = model.sample_tokens(3, labels, options=options)
    assert len(tokens.unique()) > 3
    assert torch.equal(tokens, expected_tokens(model, labels, options))


@every
@pytest.mark.parametrize("num_steps", [1, 3, 5])
@torch.no_grad()
def test_cells_of_one_step_do_not_see_each_other(name: str, num_steps: int) -> None:
    model, labels = build_any(name), condition(name)
    for order in ("random", "halton"):
        options = SamplingOptions(seed=6, order=order, num_steps=num_steps)
        tokens = model.sample_tokens(3, labels, options=options)
        assert torch.equal(tokens, expected_tokens(model, labels, options))


@every
@torch.no_grad()
def test_given_tokens_stay_and_each_image_may_have_its_own(name: str) -> None:
    model, labels = build_any(name), condition(name)
    given_tokens = torch.randint(8, (3, NUM_TOKENS), generator=torch.Generator().manual_seed(2))
    given_tokens[
        torch.tensor([[0], [1], [2]]), torch.tensor([[3, 5, 7], [0, 1, 11], [4, 5, 6]])
    ] = -1
    given_tokens[2, 8] = -1
    for options in (
        SamplingOptions(seed=6, order="random"),
        SamplingOptions(seed=6, num_steps=4),
        SamplingOptions(seed=6),
    ):
        tokens = model.sample_tokens(3, labels, given_tokens=given_tokens, options=options)
        assert torch.equal(tokens[given_tokens >= 0], given_tokens[given_tokens >= 0])
        assert torch.equal(tokens, expected_tokens(model, labels, options, given_tokens))
        for row in range(3):  # the batch makes no difference
            single = None if labels is None else labels[row : row + 1]
            alone = model.sample_tokens(
                1,
                single,
                given_tokens=given_tokens[row : row + 1],
                options=options,
                first_image=row,
            )
            assert torch.equal(alone[0], tokens[row])


@pytest.mark.parametrize("settings", [{"order": "random"}, {"num_steps": 5}])
@pytest.mark.parametrize("name", ["class rotary_2d", "image sinusoidal_2d both ways", "context"])
def test_guidance_from_half_of_the_image_on(name: str, settings: dict[str, Any]) -> None:
    """The second half catches up, so skipping it makes no difference."""
    model, labels = build_any(name), condition(name)
    guided = {"guidance_scale": 3.0, "guidance_interval": (0.5, 1.0), "seed": 3, **settings}
    tokens = draw(model, labels, **guided)
    everywhere = {**guided, "guidance_interval": (0.0, 1.0), "guidance_schedule": "constant"}
    assert not torch.equal(tokens, draw(model, labels, **everywhere))
    unguided = draw(model, labels, seed=3, **settings)
    assert not torch.equal(tokens, unguided)
    options = SamplingOptions(seed=3, **settings)
    cells = drawing_order(options, range(3), GRID).expand(3, -1)
    ends = step_ends(NUM_TOKENS, options.num_steps)
    first = next(end for end in ends if end > NUM_TOKENS // 2)
    before = cells[:, : ends[ends.index(first) - 1]]
    assert torch.equal(tokens.gather(1, before), unguided.gather(1, before))


@pytest.mark.parametrize(
    ("settings", "orders"),
    [
        ({"order": "raster"}, [(0, 1)]),
        ({"order": "random"}, [(0, 1), (1, 0)]),
        ({"num_steps": 1}, []),
    ],
)
@torch.no_grad()
def test_frequencies_are_the_probabilities_of_all_images(
    settings: dict[str, Any], orders: list[tuple[int, int]]
) -> None:
    """Chi-square test; a random order is one of two, and one step draws both codes on their own."""
    model = tiny(Unconditional(), (1, 2), codebook_size=4, order="any", positions="sinusoidal_2d")
    for parameter in model.transformer.parameters():
        parameter.add_(0.4 * torch.randn_like(parameter))
    prefix = torch.zeros(16, 1, dtype=torch.int64)

    def log_p(cells: tuple[int, ...], tokens: torch.Tensor) -> torch.Tensor:
        logits = model.transformer.token_logits(prefix, tokens, cells=torch.tensor([cells]))
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)  # (16 n)

    if orders:
        each = [log_p(cells, PAIRS[:, cells]).sum(1).exp() for cells in orders]
        probabilities = torch.stack(each).mean(0)
        if len(orders) == 2:
            assert (each[0] - each[1]).abs().max() > 0.02  # or it would not tell the orders apart
    else:
        probabilities = (log_p((0,), PAIRS[:, :1]) + log_p((1,), PAIRS[:, 1:])).squeeze(1).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-5)
    tokens = draw(model, None, 4000, seed=0, batch_size=4000, **settings)
    counts = torch.bincount(tokens[:, 0] * 4 + tokens[:, 1], minlength=16)
    expected = 4000 * probabilities
    assert expected.min() > 5
    assert ((counts - expected) ** 2 / expected).sum().item() < chdtri(15, 0.001)


def test_step_ends() -> None:
    assert step_ends(4, None) == step_ends(4, 9) == [1, 2, 3, 4]
    assert step_ends(64, 8) == [1, 5, 11, 19, 28, 40, 52, 64]
    for n in range(1, 40):
        for steps in range(1, n + 1):
            ends = step_ends(n, steps)
            assert len(ends) == steps and ends[-1] == n and sorted({0, *ends}) == [0, *ends]


def test_a_random_order_depends_on_seed_and_image_alone() -> None:
    options = SamplingOptions(seed=1, order="random")
    orders = drawing_order(options, range(3), GRID)
    assert torch.equal(orders[1:], drawing_order(options, range(1, 3), GRID))
    assert torch.equal(orders.sort(1).values, torch.arange(NUM_TOKENS).expand(3, -1))
    assert not torch.equal(orders[0], orders[1])


@pytest.mark.parametrize("order", [None, "halton", "random"])
def test_larger_images_grow_from_what_is_given(order: Any) -> None:
    model = build_any("class sinusoidal_2d")
    grid = (6, 9)
    given_tokens = torch.full((2, *grid), -1)
    given_tokens[:, 2:5, 3:7] = torch.arange(12).view(3, 4) % 8
    options = SamplingOptions(seed=0, grid_size=grid, order=order)
    tokens = model.sample_tokens(
        2, torch.tensor([0, 1]), given_tokens=given_tokens.flatten(1), options=options
    )
    assert (tokens >= 0).all()
    indices = to_indices(tokens, grid)
    assert torch.equal(indices[:, 2:5, 3:7], given_tokens[:, 2:5, 3:7])
    from_nothing = model.sample_tokens(2, torch.tensor([0, 1]), options=options)
    assert from_nothing.shape == (2, 54) and (from_nothing >= 0).all()


def test_a_model_of_one_order_refuses_orders_and_steps() -> None:
    model = tiny(KINDS["class"][0])
    for settings in ({"order": "random"}, {"num_steps": 3}):
        with pytest.raises(UserError, match=r"in raster order.* train a model with order=random"):
            draw(model, condition("class"), **settings)
    with pytest.raises(UserError, match="order=halton or order=random"):
        draw(build_any("class"), condition("class"), order="raster", num_steps=3)


@pytest.mark.parametrize("order", ["spiral_out", "z_curve", "fixed_random", "halton"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal_2d", "rotary_2d"])
@torch.no_grad()
def test_a_fixed_order_places_each_token_in_its_cell(order: Any, positions: Any) -> None:
    """Positions by row and column belong to the cell, learned ones to the place in the sequence."""
    conditioning = KINDS["class"][0]
    model = tiny(conditioning, order=order, positions=positions)
    cells = order_cells(order, GRID)
    tokens = model.sample_tokens(2, torch.tensor([0, 1]), seed=0)
    indices = model.to_indices(tokens)
    assert torch.equal(indices.flatten(1)[:, cells], tokens)
    assert torch.equal(model.to_tokens(indices), tokens)
    raster = tiny(conditioning, positions=positions)
    raster.transformer.load_state_dict(model.transformer.state_dict())
    same = torch.allclose(model.logits(tokens, torch.tensor([0, 1])),
                          raster.logits(tokens, torch.tensor([0, 1])), atol=1e-5)  # fmt: skip
    assert same == (positions == "learned")
    with pytest.raises(UserError, match=f"Its order, {order}, has no other sizes"):
        draw(model, torch.tensor([0, 1]), 2, grid_size=(6, 4))
