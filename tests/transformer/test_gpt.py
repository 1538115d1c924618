import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from taming.attention import CacheView, KeyValueCache
from taming.runtime.errors import UserError
from taming.transformer import GPT, GPTConfig

GRID = {"grid_size": [2, 4], "prefix_length": 2}


def tiny(**changes: Any) -> GPT:
    torch.manual_seed(0)
    config: dict[str, Any] = {
        "codebook_size": 11,
        "num_prefix_ids": 3,
        "context_length": 10,
        "num_layers": 2,
        "num_heads": 2,
        "embed_dim": 16,
    }
    return GPT(GPTConfig(**{**config, **changes}))


def inputs(num_tokens: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(3, (2, 2), generator=generator)
    return prefix, torch.randint(11, (2, num_tokens), generator=generator)


def test_parameter_count_of_the_published_size() -> None:
    with torch.device("meta"):
        model = GPT(
            GPTConfig(
                codebook_size=1024, num_prefix_ids=1, context_length=512, num_layers=24,
                num_heads=16, embed_dim=1024, positions="learned",
            )
        )  # fmt: skip
    # minGPT with 24 layers of width 1024: 304,932,864; the start id adds one row here
    assert sum(p.numel() for p in model.parameters()) == 304_932_864 + 1024


@pytest.mark.parametrize("steps", [[1] * 8, [4, 1, 3]])
def test_cached_equals_uncached(steps: list[int]) -> None:
    model = tiny().double().eval()
    prefix, tokens = inputs()
    cache = KeyValueCache(num_layers=2, num_sequences=2, max_length=10)
    first, *steps_positions = torch.arange(10).split([2, *steps])
    with torch.no_grad():
        whole = model.features(prefix, tokens)
        parts = [model.features(prefix, tokens[:, :0], cache=CacheView(cache, first, 2))]
        for positions in steps_positions:
            view = CacheView(cache, positions, int(positions[-1]) + 1)
            parts.append(model.features(None, tokens[:, positions - 2], cache=view))
    assert whole.shape == (2, 10, 16)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_token_logits_are_aligned() -> None:
    model = tiny()
    prefix, tokens = inputs(num_tokens=9)  # one longer than the context: the last is no input
    logits = model.token_logits(prefix, tokens)
    torch.testing.assert_close(logits, model(prefix, tokens[:, :-1])[:, 1:])
    assert model.token_logits(prefix, tokens[:, :1]).shape == (2, 1, 11)
    assert model.token_logits(prefix, tokens[:, :0]).shape == (2, 0, 11)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "sinusoidal"},
        {"positions": "learned"},
        {"norm": "rms_norm", "feed_forward": "swiglu", "positions": "rotary_2d", **GRID},
        {"num_context_ids": 3, "context_grid_size": [1, 2], "num_layers": 3},
    ],
)
def test_initialisation_follows_the_table(changes: dict[str, Any]) -> None:
    model = tiny(embed_dim=128, codebook_size=512, **changes)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    model.init_weights()
    block = model.blocks[0]
    has_context = "num_context_ids" in changes
    ends = {"attention.output", "feed_forward.contract"}
    ends |= {"context_attention.output"} if has_context else set()
    assert ends <= {name for name, _ in block.named_modules()}
    num_branches = len(ends) * len(model.blocks)
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            std = 0.02 / math.sqrt(num_branches) if name in ends else 0.02
            assert module.weight.std().item() == pytest.approx(std, rel=0.05), name
            assert (module.bias == 0).all()
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            assert (module.weight == 1).all()
            assert all((p == 0).all() for name, p in module.named_parameters() if name == "bias")
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    if changes.get("positions") in ("sinusoidal", "learned"):
        added = model.positions(torch.zeros(1, 10, 128), torch.arange(10))
        assert 0.015 < added.std().item() < 0.06  # of the scale of the embeddings
    prefix, tokens = inputs()
    context = torch.tensor([[0, 1], [2, 0]]) if has_context else None
    logits = model.token_logits(prefix, tokens, context)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert loss.item() == pytest.approx(math.log(512), rel=0.03)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "embedding_dropout"])
def test_each_dropout_is_active_only_in_training(kind: str) -> None:
    model, plain = tiny(**{kind: 0.3}), tiny().eval()
    model.load_state_dict(plain.state_dict())
    prefix, tokens = inputs()
    expected = plain(prefix, tokens)
    first, second = model(prefix, tokens), model(prefix, tokens)
    assert not torch.equal(first, second) and not torch.equal(first, expected)
    model.eval()
    assert torch.equal(model(prefix, tokens), expected)


@pytest.mark.parametrize("branch", ["attention", "context_attention", "feed_forward"])
def test_dropout_is_on_every_branch(branch: str) -> None:
    """With all other branches at zero, two calls differ."""
    model = tiny(dropout=0.3, num_context_ids=3, context_grid_size=[1, 2], num_layers=1)
    block = model.blocks[0]
    for end in ("attention.output", "context_attention.output", "feed_forward.contract"):
        if not end.startswith(branch):
            nn.init.zeros_(block.get_submodule(end).weight)
    prefix, tokens = inputs()
    outputs = [model(prefix, tokens, context=torch.zeros(2, 2).long()) for _ in range(2)]
    assert not torch.equal(*outputs)


def test_tied_head_is_the_token_embedding() -> None:
    model, untied = tiny(tie_head=True), tiny()
    assert model.head.weight is model.token_embedding.weight
    assert sum(p.numel() for p in untied.parameters()) == 11 * 16 + sum(
        p.numel() for p in model.parameters()
    )


def test_it_memorises_two_sequences() -> None:
    model = tiny(embed_dim=32)
    prefix = torch.tensor([[0], [1]])
    tokens = torch.tensor([[1, 1, 2, 1, 1, 3, 1, 1], [4, 4, 4, 4, 5, 5, 5, 5]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        loss = F.cross_entropy(model.token_logits(prefix, tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert torch.equal(model.token_logits(prefix, tokens).argmax(-1), tokens)


def test_a_wrong_config_or_wrong_weights_are_reported() -> None:
    saved = tiny().to_saved()
    with pytest.raises(
        UserError, match=r"weights of the gpt .* are wrong.* size mismatch"
    ) as error:
        GPT.from_saved(replace(saved, config={**saved.config, "embed_dim": 32}))
    assert len(str(error.value)) < 400
    for name, value in (("width", 3), ("positions", "rotary"), ("num_layers", 0)):
        with pytest.raises(UserError, match=rf"(?s)config .* wrong.*{name}"):
            GPT.from_saved(replace(saved, config={**saved.config, name: value}))
    del saved.state["norm.weight"]
    with pytest.raises(UserError, match=r"norm\.weight"):
        GPT.from_saved(saved)
    with pytest.raises(ValueError, match=r"(?s)attention_dropout.*less than 1"):
        tiny(attention_dropout=1.5)
