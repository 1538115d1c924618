"""Every kind of transformer and condition: cached steps, guidance, windows."""

from typing import Any

import pytest
import torch
from every_kind import GRID, KINDS, build, condition, draw
from torch import Tensor

from taming.generation import Guidance, ImageGenerator
from taming.generation.choice import TokenChoice, random_numbers
from taming.generation.window import plan_windows
from taming.runtime.errors import UserError
from taming.tokenizer import CellClasses
from taming.transformer.orders import to_tokens

every = pytest.mark.parametrize("name", KINDS)
conditional = pytest.mark.parametrize(
    "name", [name for name in KINDS if not name.startswith("unconditional")]
)


def log_likelihood(model: ImageGenerator, tokens: Tensor, labels: Tensor | None) -> Tensor:
    logits = model.logits(tokens, labels).log_softmax(-1)
    return logits.gather(-1, tokens[..., None]).squeeze(-1)


@every
def test_cached_decoding_equals_uncached(name: str) -> None:
    model = build(name)
    labels = condition(name)
    tokens = model.sample_tokens(3, labels, seed=6)
    assert len(tokens.unique()) > 5  # or it would say little
    choose = TokenChoice(random_numbers(6, range(3), model.num_tokens))
    for place in range(model.num_tokens):
        logits = model.logits(tokens[:, : place + 1], labels)[:, -1:]  # without a cache
        assert torch.equal(choose(logits, torch.tensor([place])), tokens[:, place : place + 1])
    greedy = model.sample_tokens(3, labels, greedy=True)
    assert torch.equal(model.logits(greedy, labels).argmax(-1), greedy)


@conditional
def test_guided_decoding_is_its_equation_without_a_cache(name: str) -> None:
    model = build(name)
    labels = condition(name)
    guidance: dict[str, Any] = {"guidance_scale": 3.0, "guidance_schedule": "linear"}
    tokens = draw(model, labels, top_k=4, seed=5, **guidance)
    assert not torch.equal(tokens, model.sample_tokens(3, labels, top_k=4, seed=5))
    with_condition, without = model.logits(tokens, labels), model.logits(tokens)
    scales = torch.linspace(1.0, 3.0, model.num_tokens)[:, None]
    guided = without + scales * (with_condition - without)
    top_tokens = guided.topk(4).indices  # top-k is of the guided logits
    assert (top_tokens == tokens[..., None]).any(-1).all()
    greedy = model.sample_tokens(3, labels, greedy=True, guidance_scale=2.0)
    with_condition, without = model.logits(greedy, labels), model.logits(greedy)
    assert torch.equal((without + 2 * (with_condition - without)).argmax(-1), greedy)


@conditional
@pytest.mark.parametrize("interval", [(0.0, 0.5), (0.4, 0.8), (0.5, 1.0), (0.05, 0.1)])
def test_tokens_without_guidance_are_drawn_from_one_half(
    name: str, interval: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are those of both halves at every step; the work is counted."""
    model = build(name)
    labels = condition(name)
    first_tokens = torch.ones(3, 2, dtype=torch.int64)
    settings: dict[str, Any] = {"guidance_scale": 3.0, "guidance_interval": interval}
    guided = Guidance(3.0, interval=interval).guided(model.num_tokens)
    rows = [0] * 100  # by the first position of a call
    features = model.transformer.features

    def watched(prefix: Any, tokens: Tensor, *inputs: Any, **how: Any) -> Tensor:
        rows[int(how["cache"].positions[0])] += len(tokens)
        return features(prefix, tokens, *inputs, **how)

    for num_given in (0, 2):
        settings |= {"given_tokens": first_tokens[:, :num_given], "seed": 3}
        halves = draw(model, labels, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(Guidance, "guided", lambda self, num_tokens: range(num_tokens))
            assert torch.equal(draw(model, labels, **settings), halves)
    with monkeypatch.context() as patch:
        patch.setattr(model.transformer, "features", watched)
        draw(model, labels, **settings | {"given_tokens": None})
    assert rows[0] == 6  # each half is prefilled once
    steps = rows[model.conditioning.prefix_length :]
    expected = [6 if number in guided else 3 for number in range(1, model.num_tokens)]
    assert steps[: len(expected)] == expected


@every
def test_the_condition_and_every_earlier_token_matter_and_no_later_one(name: str) -> None:
    model = build(name)
    labels = condition(name)
    tokens = model.sample_tokens(3, labels, seed=0)
    before = log_likelihood(model, tokens, labels)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 8
    after = model.logits(changed, labels).log_softmax(-1)
    plain = model.logits(tokens, labels).log_softmax(-1)
    torch.testing.assert_close(after[:, :6], plain[:, :6])
    assert ((after[:, 6:] - plain[:, 6:]).abs().amax(-1) > 1e-6).all()
    if labels is not None:
        other = (labels + 1) % 3 if name.startswith("class") else labels.flip(2)
        assert (log_likelihood(model, tokens, other) - before).abs().max() > 1e-4


@every
def test_given_tokens_and_the_batch_change_nothing_else(name: str) -> None:
    model = build(name)
    labels = condition(name)
    whole = model.sample_tokens(3, labels, seed=3)
    assert torch.equal(draw(model, labels, seed=3, batch_size=2), whole)
    for num_given in (1, 7, 12):
        again = model.sample_tokens(3, labels, seed=3, given_tokens=whole[:, :num_given])
        assert torch.equal(again, whole)


@every
def test_a_saved_generator_draws_the_same(name: str, tmp_path: Any) -> None:
    model = build(name)
    model.save_pretrained(tmp_path)
    again = ImageGenerator.from_pretrained(tmp_path)
    labels = condition(name)
    assert torch.equal(draw(again, labels, seed=1), draw(model, labels, seed=1))


@conditional
def test_training_reaches_every_weight(name: str) -> None:
    model = build(name).train()
    tokens = torch.randint(8, (3, 12))
    model.logits(tokens, condition(name)).logsumexp(-1).sum().backward()
    idle = [name for name, p in model.transformer.named_parameters() if p.grad is None]
    assert idle == []


@every
def test_checkpointing_keeps_fewer_activations_and_changes_no_gradient(name: str) -> None:
    gradients, num_kept = [], []
    for checkpointing in (False, True):
        model = build(name).train()
        model.transformer.checkpointing = checkpointing
        tokens = torch.randint(8, (3, 12), generator=torch.Generator().manual_seed(0))
        torch.manual_seed(3)  # dropout
        sizes: list[int] = []

        def count(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            logits = model.logits(tokens, condition(name))
        num_kept.append(sum(sizes))
        logits.logsumexp(-1).sum().backward()
        gradients.append([p.grad for p in model.transformer.parameters()])
    assert num_kept[1] < 0.3 * num_kept[0]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


# --- larger grids ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stride"),
    [(name, 2) for name in KINDS if "any order" not in name]
    + [(name, None) for name in ("class", "image rotary_2d", "context")],  # a cell, of a class 1
)
def test_every_token_of_a_larger_grid_is_drawn_within_its_window(
    name: str, stride: int | None
) -> None:
    model = build(name)
    size = (6, 8)
    labels = condition(name, scale=2)
    tokens = draw(model, labels, greedy=True, grid_size=size, stride=stride)
    assert tokens.shape == (3, 48)
    grid = tokens.unflatten(1, size)
    # by hand, for a token in the middle: the stride divides its window's column
    row, column = 2, 2
    i, j = row + 1, column + 2  # it is in row 3 // 2 and column 4 // 2 of the window
    window = to_tokens(grid[:, row : row + 3, column : column + 4])
    part = labels
    if labels is not None and labels.ndim == 4:  # 2 × 2 pixels and 1 × 1/2 codes a cell
        part = labels[:, :, 2 * row : 2 * row + 6, column : column + 4]
    logits = model.logits(window, part)
    assert torch.equal(logits[:, 6].argmax(-1), grid[:, i, j])


@pytest.mark.parametrize("name", ["image rotary_2d", "context"])
def test_no_window_cuts_through_a_cell_of_the_condition(name: str) -> None:
    """A cell is two columns of codes: in every window the condition is what belongs there."""
    model, size = build(name), (5, 8)
    generator = torch.Generator().manual_seed(1)
    labels = CellClasses(5, 2, (6, 4)).decode(torch.randint(5, (3, 5, 4), generator=generator))
    tokens = draw(model, labels, greedy=True, grid_size=size)
    assert model.window_step == (1, 2)
    runs = plan_windows(size, GRID, step=(1, 2))
    assert {run.column for run in runs} == {0, 2, 4}
    grid = tokens.unflatten(1, size)
    for run in runs:
        row, column = run.row, run.column
        window = to_tokens(grid[:, row : row + 3, column : column + 4])
        part = labels[:, :, 2 * row : 2 * row + 6, column : column + 4]  # 2 pixels a cell
        logits = model.logits(window, part)
        assert torch.equal(logits[:, run.start].argmax(-1), window[:, run.start])
    for settings in ({"grid_size": (5, 7)}, {"grid_size": size, "stride": 1}):
        with pytest.raises(UserError, match="multiple of"):
            draw(model, labels, **settings)


def test_a_larger_grid_keeps_given_tokens_and_random_streams() -> None:
    model, size = build("class"), (5, 7)
    labels = torch.arange(3)
    whole = draw(model, labels, seed=4, grid_size=size)
    again = draw(model, labels, given_tokens=whole[:, :10], seed=4, grid_size=size)
    assert torch.equal(again, whole)
    alone = draw(model, labels, seed=4, grid_size=size, batch_size=1)
    assert torch.equal(alone, whole)
    trained = draw(model, labels, seed=4, grid_size=GRID)
    assert torch.equal(trained, model.sample_tokens(3, labels, seed=4))
