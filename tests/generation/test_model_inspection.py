import math

import pytest
import torch
from every_kind import KINDS, GreyTokenizer, tiny
from tiny_models import tiny_vqgan

from taming.conditioning import Unconditional
from taming.generation import attention_maps, candidates, codes_alone, token_surprise


def random_tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(8, (count, 12), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_over_the_tokens_before_the_predicted_one(kind: str) -> None:
    conditioning, changes = KINDS[kind]
    model = tiny(conditioning, **{"dropout": 0.3, **changes}).train()
    tokens = random_tokens(2)
    maps = attention_maps(model, tokens)
    assert maps.shape == (2, 2, 2, 12, 12)
    assert torch.equal(maps, maps.tril(-1))  # never to itself, which is not yet known
    sums = maps.sum(-1)
    assert (sums[..., 1:] > 0).all() and (sums < 1).all()  # the prefix has the rest
    assert model.transformer.training
    some = attention_maps(model, tokens, positions=[11, 3])
    assert torch.equal(some, maps[:, :, :, [11, 3]])


def test_attention_weights_are_those_the_model_uses() -> None:
    """The values of one layer, weighted by its map, are what the model's attention returns."""
    model = tiny(Unconditional(), num_layers=1)
    layer = model.transformer.blocks[0].attention
    tensors = {}
    fused = layer.attention

    def spy(query, key, value, *args, **kwargs):
        tensors["values"], tensors["heads"] = value, fused(query, key, value, *args, **kwargs)
        return tensors["heads"]

    tokens = random_tokens(1)
    layer.attention = spy
    model.logits(tokens)
    maps = attention_maps(model, tokens)
    assert layer.attention is spy  # as before
    values = tensors["values"]  # (1 heads 1+11 d): the prefix and all but the last token
    weights = maps[:, 0, :, :, :11]  # (1 heads 12 11)
    prefix = 1 - weights.sum(-1, keepdim=True)
    torch.testing.assert_close(torch.cat([prefix, weights], -1) @ values, tensors["heads"])


def test_surprise_is_in_bits() -> None:
    model = tiny(Unconditional(), dropout=0.3).train()
    tokens = random_tokens(2)
    torch.nn.init.zeros_(model.transformer.head.weight)
    assert torch.equal(token_surprise(model, tokens), torch.full((2, 12), math.log2(8)))
    torch.nn.init.normal_(model.transformer.head.weight)
    model.eval()
    expected = -model.logits(tokens).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(token_surprise(model, tokens), expected / math.log(2))


def test_candidates_depend_on_the_tokens_before_alone() -> None:
    model = tiny(Unconditional(), dropout=0.3)
    torch.nn.init.normal_(model.transformer.head.weight)
    tokens = random_tokens(3)
    expected = model.logits(tokens)[:, 5].softmax(-1)
    codes, probabilities = candidates(model.train(), tokens[:, :5], 5, k=3)
    assert codes.shape == (3, 3) and (probabilities.diff(dim=1) <= 0).all()
    torch.testing.assert_close(expected.gather(1, codes), probabilities)
    changed = tokens.clone()
    changed[:, 5:] = 0
    for one, other in zip(candidates(model, changed, 5, k=3), (codes, probabilities), strict=True):
        assert torch.equal(one, other)
    codes, probabilities = candidates(model, tokens, 0, k=99)
    assert codes.shape == (3, 8)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))


def test_a_code_alone_is_its_own_picture() -> None:
    tokenizer = GreyTokenizer().train()
    tokenizer.device = tokenizer.scale.device
    pictures = codes_alone(tokenizer, torch.tensor([7, 2, 4]))  # type: ignore[arg-type]
    assert pictures.shape == (3, 3, 2, 2) and tokenizer.training
    grey = torch.tensor([1.0, -1.0, 0.0])  # 7 is brighter than white
    assert torch.equal(pictures, grey[:, None, None, None].expand(3, 3, 2, 2))


def test_codes_alone_of_a_vqgan_do_not_depend_on_those_beside_them() -> None:
    vqgan = tiny_vqgan()
    every = codes_alone(vqgan, torch.arange(8))
    assert every.shape == (8, 3, 2, 2)
    torch.testing.assert_close(codes_alone(vqgan, torch.tensor([5])), every[5:6])
