"""The decoding loop: one token after the other."""

from collections.abc import Callable

import torch
from torch import Tensor

from taming.attention import KeyValueCache
from taming.conditioning import Prompt
from taming.errors import UserError
from taming.generation.choice import TokenChoice
from taming.generation.compiled import CompiledSteps
from taming.transformer import GPT

__all__ = ["decode_tokens"]


@torch.no_grad()
def decode_tokens(
    transformer: GPT,
    prompt: Prompt,
    given_tokens: Tensor,
    num_tokens: int,
    choose: TokenChoice,
    on_step: Callable[[], object] = lambda: None,
    compiled: CompiledSteps | None = None,
) -> Tensor:
    """Continues the given tokens until there are `num_tokens`.

    Prefill puts prefix and given tokens through the transformer at once; then each new token goes
    through alone, the keys and values of those before it being in the cache.

    Args:
        transformer: in evaluation mode.
        prompt: of b sequences; with guidance of 2b, those with condition first.
        given_tokens: `(b m)` first tokens, m at most `num_tokens`.
        num_tokens: n.
        choose: how a token is taken from its logits.
        on_step: called after each step, which gives every sequence a token; for a progress bar.
        compiled: takes the steps after the prefill; made for these shapes and this way to choose.

    Returns:
        `(b n)` int64, the given tokens included.
    """
    batch_size, num_given = given_tokens.shape
    if num_given == num_tokens:
        return given_tokens
    tokens = given_tokens.new_empty(batch_size, num_tokens)
    tokens[:, :num_given] = given_tokens
    places = torch.arange(num_tokens, device=tokens.device)

    num_prefix = prompt.prefix.shape[1]
    if compiled is None:
        cache = KeyValueCache(len(transformer.blocks), num_prefix + num_tokens)
    else:
        cache = compiled.begin(choose)
    features = transformer.features(
        prompt.prefix, given_tokens.repeat(choose.num_sequences, 1), cache, prompt.context
    )  # (b p+m d)
    logits = transformer.head(features[:, -1])  # (b v)
    if logits.isnan().any():
        raise UserError(
            "the transformer's logits are not numbers (NaN): its training diverged or its weights "
            "are damaged. Use an earlier checkpoint."
        )
    no_prefix = prompt.prefix[:, :0]

    def eager_step(latest: Tensor, place: int) -> Tensor:
        sequences = latest.repeat(choose.num_sequences, 1)
        logits = transformer(no_prefix, sequences, cache)[:, -1]  # (b v)
        return choose(logits, places[place : place + 1])

    step = eager_step if compiled is None else compiled.step
    latest = choose(logits, places[num_given : num_given + 1])  # (b)
    tokens[:, num_given] = latest
    on_step()
    for place in range(num_given + 1, num_tokens):
        # not a part of `tokens`, whose strides differ from window to window: each would be compiled
        latest = step(latest[:, None], place)
        tokens[:, place] = latest
        on_step()
    return tokens
