"""Drawing the tokens of a grid, window after window."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.generation.compiled import CompiledSteps
from taming.generation.decoding import decode_tokens
from taming.generation.window import WindowRun
from taming.sequence import to_indices, to_tokens
from taming.transformer import GPT

__all__ = ["draw_tokens"]


def draw_tokens(
    transformer: GPT,
    prompt_for: Callable[[WindowRun], Prompt],
    given_tokens: Tensor,
    choose: TokenChoice,
    runs: Sequence[WindowRun],
    *,
    grid_size: tuple[int, int],
    window: tuple[int, int],
    on_step: Callable[[], object] = lambda: None,
    compiled: Callable[[TokenChoice, Prompt], CompiledSteps] | None = None,
) -> Tensor:
    """Continues the given tokens of a grid until it is full.

    Args:
        transformer: in evaluation mode.
        prompt_for: what the transformer is given in a window; see `decode_tokens`.
        given_tokens: `(b m)` first tokens.
        choose: how a token is taken from its logits, for all places of the grid.
        runs: of `plan_windows`, after m given tokens.
        grid_size: (height, width) of the grid.
        window: (height, width) of the window, the grid that the transformer was trained on.
        on_step: called after each step, which gives every image a token.
        compiled: from a choice and a prompt to compiled steps.

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
        places = tokens.new_zeros(window[0] * window[1])
        places[run.start : run.start + run.count] = torch.arange(
            done, done + run.count, device=tokens.device
        )
        choose_here, prompt = choose.at(places), prompt_for(run)
        drawn = decode_tokens(
            transformer,
            prompt,
            before,
            run.start + run.count,
            choose_here,
            on_step,
            None if compiled is None else compiled(choose_here, prompt),
        )
        tokens[:, done : done + run.count] = drawn[:, run.start :]
        done += run.count
    return tokens
