"""The sampling loop: batch after batch, window after window, token after token."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import Condition
from taming.generation.choice import TokenChoice
from taming.generation.compiled import CompiledDecoder
from taming.generation.conditional import ConditionalTransformer
from taming.generation.decoding import Decoder
from taming.generation.options import SamplingOptions
from taming.generation.speed import decide_compilation
from taming.generation.window import plan_windows
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError
from taming.transformer.orders import to_indices, to_tokens

__all__ = ["TokenSampler", "resolve"]


class TokenSampler:
    """Draws tokens, and keeps the compiled decoder for the next batch or window that it fits."""

    def __init__(self) -> None:
        self.compiled: CompiledDecoder | None = None

    def sample(
        self,
        model: ConditionalTransformer,
        options: SamplingOptions,
        num_images: int,
        condition: Condition,
        given_tokens: Tensor | None,
        *,
        first_image: int,
        progress: bool,
    ) -> Tensor:
        """Draws all batches; see `ImageGenerator.sample_tokens`."""
        options, condition, given_tokens = resolve(
            model, options, num_images, condition, given_tokens
        )
        batch_size = options.batch_size or min(num_images, options.images_at_once)
        num_drawn = num_images
        if options.compile:
            num_drawn += -num_images % batch_size  # whole batches
            given_tokens = _pad(given_tokens, num_drawn)
            condition = None if condition is None else _pad(condition, num_drawn)
        numbers = range(first_image, first_image + num_drawn)
        height, width = options.grid_size or model.grid_size
        total = num_drawn * (height * width - given_tokens.shape[1])
        bar = tqdm(None, "sampling", total, unit=" tokens", unit_scale=True, disable=not progress)
        batches = []
        with bar, evaluation_mode(model.transformer):
            for start in range(0, num_drawn, batch_size):
                rows = slice(start, start + batch_size)
                part = None if condition is None else condition[rows]
                batches.append(given_tokens[rows])
                for tokens in self.draw(model, part, given_tokens[rows], numbers[rows], options):
                    batches[-1] = tokens
                    bar.update(len(tokens))
        return torch.cat(batches)[:num_images]

    def draw(
        self,
        model: ConditionalTransformer,
        condition: Tensor | None,
        given_tokens: Tensor,
        image_numbers: range,
        options: SamplingOptions,
    ) -> Iterator[Tensor]:
        """Draws a batch, window after window; yields the tokens so far after each new token."""
        grid_size = options.grid_size or model.grid_size
        batch_size, done = given_tokens.shape
        runs = plan_windows(
            grid_size, model.grid_size, options.stride, num_given=done, step=model.window_step
        )
        condition = model.encode_condition(condition, grid_size)
        tokens = given_tokens.new_zeros(batch_size, grid_size[0] * grid_size[1])
        tokens[:, :done] = given_tokens
        choose = TokenChoice.of(options, image_numbers, tokens.shape[1], model.device)
        for run in runs:
            rows = slice(run.row, run.row + model.grid_size[0])
            columns = slice(run.column, run.column + model.grid_size[1])
            before = to_tokens(to_indices(tokens, grid_size)[:, rows, columns])[:, : run.start]
            prompt = model.prompt(condition, batch_size, run.row, run.column)
            if choose.scales is not None:
                prompt = prompt.concatenate(
                    model.conditioning.prompt(None, batch_size, model.device)
                )
            # the window's token number `start` is the image's token number `done`
            choice = choose.narrow(done - run.start, model.num_tokens)
            arguments = model.transformer, choice, prompt, model.num_tokens
            decoder: Decoder
            if options.compile:
                decoder = self.compiled = CompiledDecoder.reuse(self.compiled, *arguments)
            else:
                decoder = Decoder(*arguments)
            end = run.start + run.count
            for latest in decoder.decode(prompt, before, end, choice.guided):
                tokens[:, done] = latest
                done += 1
                yield tokens[:, :done]


def resolve(
    model: ConditionalTransformer,
    options: SamplingOptions,
    num_images: int,
    condition: Condition,
    given_tokens: Tensor | None,
) -> tuple[SamplingOptions, Tensor | None, Tensor]:
    """Checks the arguments; returns options with a seed, and tensors.

    Raises:
        UserError: see `sample_tokens`.
    """
    if num_images < 1:
        raise UserError(f"num_images is {num_images}, but must be at least 1.")
    condition = model.conditioning.check(condition, num_images)
    if not options.guidance.is_off and condition is None:
        raise UserError(
            "guidance strengthens a condition: pass a condition, or leave guidance out."
        )
    if not options.guidance.is_off and not model.conditioning.can_do_without:
        raise UserError("guidance needs a model trained with condition_dropout: leave it out.")
    if given_tokens is None:
        given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
    given_tokens = model.check_tokens(given_tokens, options.grid_size or model.grid_size)
    if len(given_tokens) != num_images:
        raise UserError(f"given_tokens has {len(given_tokens)} rows for {num_images} images.")
    if options.seed is None:
        options = replace(options, seed=int(torch.randint(2**62, ())))
    options = decide_compilation(options, model.device, model.grid_size, num_images)
    return options, condition, given_tokens


def _pad(rows: Tensor, count: int) -> Tensor:
    """Pads to `count` rows by repeating the last one."""
    return torch.cat([rows, rows[-1:].expand(count - len(rows), *rows.shape[1:])])
