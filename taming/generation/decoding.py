"""The decoding loop: one token after the other, window after window."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from taming.conditioning import Prompt
from taming.errors import UserError
from taming.generation.choice import TokenChoice
from taming.generation.steps import Steps
from taming.generation.window import WindowRun
from taming.sequence import to_indices, to_tokens

__all__ = ["decode_grid", "decode_tokens"]


@torch.no_grad()
def decode_tokens(
    steps: Steps,
    prompt: Prompt,
    given_tokens: Tensor,
    num_tokens: int,
    on_step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Continues the given tokens until there are `num_tokens`.

    Prefill puts prefix and given tokens through the transformer at once; then each new token goes
    through alone, the keys and values of those before it being in the cache.

    Args:
        steps: made for these shapes.
        prompt: of b sequences; with guidance of 2b, those with condition first.
        given_tokens: `(b m)` first tokens, m at most `num_tokens`.
        num_tokens: n.
        on_step: called after each step, which gives every sequence a token; for a progress bar.

    Returns:
        `(b n)` int64, the given tokens included.
    """
    batch_size, num_given = given_tokens.shape
    if num_given == num_tokens:
        return given_tokens
    tokens = given_tokens.new_empty(batch_size, num_tokens)
    tokens[:, :num_given] = given_tokens
    logits = steps.prefill(prompt, given_tokens)  # (b v)
    if logits.isnan().any():
        raise UserError(
            "the transformer's logits are not numbers (NaN): its training diverged or its weights "
            "are damaged. Use an earlier checkpoint."
        )
    latest = steps.choose(logits, steps.positions[num_given : num_given + 1])  # (b)
    tokens[:, num_given] = latest
    on_step()
    for number in range(num_given + 1, num_tokens):
        # not a part of `tokens`, whose strides differ from window to window: each would be compiled
        latest = steps.step(latest[:, None], number)
        tokens[:, number] = latest
        on_step()
    return tokens


def decode_grid(
    steps_for: Callable[[TokenChoice, Prompt], Steps],
    prompt_for: Callable[[WindowRun], Prompt],
    given_tokens: Tensor,
    choose: TokenChoice,
    runs: Sequence[WindowRun],
    *,
    grid_size: tuple[int, int],
    window: tuple[int, int],
    on_step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Continues the given tokens of a grid until it is full, window after window.

    Args:
        steps_for: returns the steps for a choice and a prompt.
        prompt_for: returns what the transformer reads in a window; see `decode_tokens`.
        given_tokens: `(b m)` first tokens.
        choose: how a token is taken from its logits, for all tokens of the grid.
        runs: from `plan_windows`, after m given tokens.
        grid_size: (height, width) of the grid.
        window: (height, width) of the window, the grid that the transformer was trained on.
        on_step: called after each step, which gives every image a token.

    Returns:
        `(b n)` int64.
    """
    batch_size, done = given_tokens.shape
    tokens = given_tokens.new_zeros(batch_size, grid_size[0] * grid_size[1])
    tokens[:, :done] = given_tokens
    for run in runs:
        rows = slice(run.row, run.row + window[0])
        columns = slice(run.column, run.column + window[1])
        before = to_tokens(to_indices(tokens, grid_size)[:, rows, columns])[:, : run.start]
        # the numbers in the grid of the tokens that this run draws, by their number in the window
        numbers = tokens.new_zeros(window[0] * window[1])
        numbers[run.start : run.start + run.count] = torch.arange(
            done, done + run.count, device=tokens.device
        )
        prompt = prompt_for(run)
        steps = steps_for(choose.at(numbers), prompt)
        drawn = decode_tokens(steps, prompt, before, run.start + run.count, on_step)
        tokens[:, done : done + run.count] = drawn[:, run.start :]
        done += run.count
    return tokens
