"""The generator: streams of random numbers, frequencies, images, completion, saving."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from every_kind import CLASS, GreyTokenizer, draw, sampling, tiny
from scipy.special import chdtri
from tiny_models import tiny_vqgan
from torch import nn

import taming
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.generation import ImageGenerator, generator
from taming.generation.choice import filter_logits
from taming.runtime.errors import MissingPathError, UserError
from taming.transformer import GPT


def make(
    conditioning: Conditioning = CLASS,
    grid_size: Any = (2, 3),
    tokenizer: Any = None,
    **changes: Any,
) -> ImageGenerator:
    model = tiny(conditioning, grid_size, tokenizer, **{"dropout": 0.3, **changes})
    nn.init.normal_(model.transformer.head.weight, std=0.5)  # far from uniform
    return model


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def test_the_batch_makes_no_difference() -> None:
    model = make()
    whole = model.sample_tokens(7, LABELS, seed=3)
    assert whole.shape == (7, 6) and whole.dtype == torch.int64
    for batch_size in (1, 3):
        assert torch.equal(draw(model, LABELS, 7, seed=3, batch_size=batch_size), whole)
    later = model.sample_tokens(3, LABELS[4:], seed=3, first_image=4)
    assert torch.equal(later, whole[4:])
    assert not torch.equal(model.sample_tokens(7, LABELS, seed=4), whole)
    assert len(whole[LABELS == 0].unique(dim=0)) > 1  # each image of a class is another


@pytest.mark.parametrize(
    "settings",
    [{}, {"guidance_scale": 3, "guidance_interval": (0.3, 1), "top_p": 0.9},
     {"grid_size": (4, 5), "stride": 1}],
)  # fmt: skip
@pytest.mark.parametrize("num_given", [0, 4])
def test_rows_are_the_tokens_of_one_call(settings: dict[str, Any], num_given: int) -> None:
    model, options = make(), sampling(seed=1, **settings)
    given_tokens = torch.arange(3 * num_given).view(3, num_given) % 8
    whole = model.sample_tokens(3, LABELS[:3], given_tokens=given_tokens, options=options)
    height, width = options.grid_size or model.grid_size
    rows = [r.clone() for r in model.sample_rows(3, LABELS[:3], given_tokens, options=options)]
    first = max(1, num_given // width)  # whole given rows come first
    assert [part.shape[1] for part in rows] == [width * row for row in range(first, height + 1)]
    assert all(torch.equal(part, whole[:, : part.shape[1]]) for part in rows)


def test_rows_that_nobody_reads_are_not_drawn() -> None:
    model, calls = make(), []
    model.transformer.head.register_forward_hook(lambda *_: calls.append(1))
    rows = model.sample_rows(1, options=sampling(seed=0))
    next(rows)
    rows.close()
    assert len(calls) == 3  # the tokens of a row


def test_without_a_seed_pytorch_global_state_decides() -> None:
    model = make()
    torch.manual_seed(1)
    first, second = model.sample_tokens(5), model.sample_tokens(5)
    torch.manual_seed(1)
    assert torch.equal(model.sample_tokens(5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("enabled", [True, False])
def test_cudnn_attention_is_off_while_decoding_and_then_as_before(enabled: bool) -> None:
    model = tiny(CLASS)
    states = []
    model.transformer.norm.register_forward_hook(
        lambda *_: states.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        model.sample_tokens(2, seed=0)
        assert len(states) == model.num_tokens and not any(states)
        nn.init.constant_(model.transformer.head.weight, math.nan)
        with pytest.raises(UserError, match="NaN"):
            model.sample_tokens(2, seed=0)
        assert torch.backends.cuda.cudnn_sdp_enabled() == enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


PAIRS = torch.tensor(list(itertools.product(range(4), repeat=2)))  # all images of two codes of 4


def assert_frequencies(logits: torch.Tensor, tokens: torch.Tensor, **options: Any) -> None:
    """Chi-square test of drawn images `(b 2)` against the logits `(16 2 4)` of all there are."""
    filtered, tokens_left = filter_logits(logits, **options)
    if tokens_left is not None:
        filtered = torch.full(logits.shape, -torch.inf).scatter(-1, tokens_left, filtered)
    log_probabilities = filtered.log_softmax(-1)
    probabilities = log_probabilities.gather(-1, PAIRS[..., None]).sum((1, 2)).exp()  # (16)
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
    expected = len(tokens) * probabilities
    counts = torch.bincount(tokens[:, 0] * 4 + tokens[:, 1], minlength=16).float()
    possible = expected > 0
    assert (counts[~possible] == 0).all()
    assert possible.sum() >= 3 and expected[possible].min() > 5
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum().item()
    degrees_of_freedom = int(possible.sum()) - 1
    assert chi_square < chdtri(degrees_of_freedom, 0.001)  # exceeded once in a thousand


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0}, {"top_k": 2}, {"top_p": 0.6}, {"top_k": 3, "top_p": 0.8}]
)
def test_frequencies_are_the_probabilities_of_the_model(options: dict[str, Any]) -> None:
    model = make(grid_size=(1, 2), codebook_size=4, conditioning=Unconditional())
    with torch.no_grad():
        logits = model.logits(PAIRS)
    tokens = draw(model, None, 6000, seed=0, batch_size=2000, **options)
    assert_frequencies(logits, tokens, **options)


@pytest.mark.parametrize("options", [{"temperature": 4.0}, {"temperature": 4.0, "top_k": 3}])
def test_frequencies_with_guidance_are_those_of_the_guided_logits(options: dict[str, Any]) -> None:
    model = make(grid_size=(1, 2), codebook_size=4)
    nn.init.normal_(model.transformer.prefix_embedding.weight, std=0.1)  # classes that differ
    settings = {"guidance_scale": 2.0, "seed": 0, "batch_size": 2000, **options}
    tokens = draw(model, torch.arange(2).repeat(6000), 12000, **settings)
    with torch.no_grad():
        without = model.logits(PAIRS)
        for label in (0, 1):
            with_condition = model.logits(PAIRS, torch.full((16,), label))
            guided = without + 2.0 * (with_condition - without)
            assert_frequencies(guided, tokens[label::2], **options)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_tokens_may_have_the_integer_types_of_a_token_cache(dtype: torch.dtype) -> None:
    model = make(tokenizer=GreyTokenizer())
    tokens = model.sample_tokens(2, LABELS[:2], seed=3)
    narrow = tokens.to(dtype)
    assert torch.equal(model.logits(narrow, LABELS[:2]), model.logits(tokens, LABELS[:2]))
    assert torch.equal(model.decode(narrow), model.decode(tokens))
    assert torch.equal(model.sample_tokens(2, LABELS[:2], given_tokens=narrow), tokens)


def test_sampling_is_in_evaluation_mode_and_leaves_the_mode_alone() -> None:
    model = make(tokenizer=GreyTokenizer())
    tokens = model.sample_tokens(4, LABELS[:4], seed=3)
    model.train()
    assert torch.equal(model.sample_tokens(4, LABELS[:4], seed=3), tokens)
    model.sample(2, LABELS[:2])
    assert all(part.training for part in model.modules())


def test_images_show_the_grid_row_by_row_and_are_clamped() -> None:
    model = make(tokenizer=GreyTokenizer())
    given_tokens = torch.tensor([[0, 2, 3, 4, 5, 7]])
    images = model.sample(1, LABELS[:1], given_tokens=given_tokens)
    assert images.shape == (1, 3, 4, 6) and not images.requires_grad
    assert images[0, 0, ::2, ::2].tolist() == [[-1.0, -1.0, -0.5], [0.0, 0.5, 1.0]]
    images = model.sample(5, LABELS[:5], options=sampling(seed=3, batch_size=2))
    assert torch.equal(images, model.decode(model.sample_tokens(5, LABELS[:5], seed=3)))
    with pytest.raises(UserError, match="2 × 3 codes are not 4 tokens"):
        model.decode(torch.zeros(1, 4, dtype=torch.int64))


def test_without_a_tokenizer_it_draws_tokens_only() -> None:
    model = make()
    assert model.sample_tokens(1, LABELS[:1]).shape == (1, 6)
    with pytest.raises(UserError, match="no tokenizer"):
        model.sample(1, LABELS[:1])


def test_logits_have_gradients_and_do_not_read_the_last_token() -> None:
    model, tokens = make(), torch.zeros(2, 6, dtype=torch.int64)
    logits = model.logits(tokens, LABELS[:2])
    assert logits.shape == (2, 6, 8) and logits.requires_grad
    tokens[:, -1] = 1
    assert torch.equal(model.logits(tokens, LABELS[:2]), logits)
    assert not torch.allclose(model.logits(tokens), logits)  # without condition


def test_parts_of_different_models() -> None:
    with pytest.raises(UserError, match="8 codes and the transformer 16"):
        make(tokenizer=GreyTokenizer(), codebook_size=16)
    transformer = make().transformer
    with pytest.raises(UserError, match=r"context_length=6, .* need 9"):
        ImageGenerator(None, transformer, CLASS, (3, 3))
    with pytest.raises(UserError, match=r"num_prefix_ids=4, .* need 6"):
        ImageGenerator(None, transformer, ClassLabel(5), (2, 3))


def test_broken_weights_are_noticed() -> None:
    model = make()
    model.transformer.norm.weight.data[0] = math.nan
    with pytest.raises(UserError, match="NaN"):
        model.sample_tokens(1)
    tokenizer = tiny_vqgan()
    tokenizer.last_layer.data[0] = math.inf
    model = make(tokenizer=tokenizer)
    with pytest.raises(UserError, match=r"images are not finite .* earlier checkpoint"):
        model.decode(torch.zeros(1, model.num_tokens, dtype=torch.int64))


def test_completion_keeps_rows_and_encodes_a_batch_at_a_time() -> None:
    tokenizer = GreyTokenizer()
    encoded: list[int] = []

    def encode(images: torch.Tensor) -> torch.Tensor:
        encoded.append(len(images))
        return ((images[:, 0, ::2, ::2] + 2.0) / tokenizer.scale).long()

    tokenizer.encode = encode  # type: ignore[attr-defined]
    model = make(tokenizer=tokenizer)
    tokens = torch.tensor([[2, 3, 4, 5, 6, 2]]).expand(5, -1)  # of shades that are not clamped
    images = model.decode(tokens)
    completed = model.complete(images, 1, LABELS[:5], options=sampling(seed=3, batch_size=2))
    assert encoded == [2, 2, 1]
    assert torch.equal(completed[:, :, :2], images[:, :, :2])
    again = model.sample(5, LABELS[:5], seed=3, given_tokens=tokens[:, :3])
    assert torch.equal(completed, again) and not torch.equal(completed, images)
    with pytest.raises(UserError, match="keep_rows is 2"):
        model.complete(images, 2, LABELS[:5])


def test_save_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "VQGAN", GreyTokenizer)
    named = ClassLabel(3, dropout=0.1, class_names=["cat", "dog", "owl"])
    model = make(named, tokenizer=GreyTokenizer())
    model.tokenizer.scale.data.fill_(0.25)
    model.save_pretrained(tmp_path / "generator")
    config = json.loads((tmp_path / "generator" / "config.json").read_text())
    assert config["kind"] == "generator" and config["grid_size"] == [2, 3]
    assert config["conditioning"]["class_names"] == ["cat", "dog", "owl"]

    loaded = taming.ImageGenerator.from_pretrained(tmp_path / "generator")
    assert not any(part.training for part in loaded.modules())
    assert loaded.grid_size == (2, 3) and loaded.class_names == ["cat", "dog", "owl"]
    assert torch.equal(loaded.sample(5, LABELS[:5], seed=3), model.sample(5, LABELS[:5], seed=3))
    transformer = GPT.from_pretrained(tmp_path / "generator")
    assert torch.equal(transformer.head.weight, model.transformer.head.weight)


def test_directories_without_a_generator(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="does not exist"):
        ImageGenerator.from_pretrained(tmp_path / "nowhere")
    model = make()
    model.transformer.save_pretrained(tmp_path / "gpt")
    with pytest.raises(UserError, match="a generator is needed"):
        ImageGenerator.from_pretrained(tmp_path / "gpt")
    saved = model.to_saved()
    del saved.parts["transformer"]
    with pytest.raises(UserError, match="has no transformer"):
        ImageGenerator.from_saved(saved)


def test_progress_bar_counts_new_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    options = sampling(batch_size=3)
    given_tokens = torch.zeros(4, 2, dtype=torch.int64)
    make().sample_tokens(4, LABELS[:4], given_tokens=given_tokens, progress=True, options=options)
    assert "16.0/16.0" in capsys.readouterr().err
    make().sample_tokens(4, LABELS[:4])
    assert capsys.readouterr().err == ""
