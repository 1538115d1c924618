"""The sampling loop: batch after batch, window after window, token after token."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import Condition, Prompt
from taming.generation.choice import TokenChoice
from taming.generation.compiled import CompiledDecoder
from taming.generation.conditional import ConditionalTransformer
from taming.generation.decoding import Decoder
from taming.generation.drawing_order import drawing_order, step_ends
from taming.generation.options import SamplingOptions
from taming.generation.speed import decide_compilation
from taming.generation.window import check_windows, next_window, plan_windows
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError
from taming.transformer.orders import known_first, to_indices, to_tokens

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
        total = num_drawn * height * width
        total -= int((given_tokens >= 0).sum()) if model.any_order else given_tokens.numel()
        bar = tqdm(None, "sampling", total, unit=" tokens", unit_scale=True, disable=not progress)
        batches = []
        with bar, evaluation_mode(model.transformer):
            for start in range(0, num_drawn, batch_size):
                rows = slice(start, start + batch_size)
                part = None if condition is None else condition[rows]
                batches.append(given_tokens[rows])
                for tokens, count in self.draw(
                    model, part, given_tokens[rows], numbers[rows], options
                ):
                    batches[-1] = tokens
                    bar.update(count)
        return torch.cat(batches)[:num_images]

    def draw(
        self,
        model: ConditionalTransformer,
        condition: Tensor | None,
        given_tokens: Tensor,
        image_numbers: range,
        options: SamplingOptions,
    ) -> Iterator[tuple[Tensor, int]]:
        """Draws a batch, window after window.

        Yields:
            after each step, the tokens so far and how many are new. The tokens are the first ones,
            `(b m)`, or for a model of any order all, `(b n)`, with -1 for tokens still to draw.
        """
        draw = self._draw_cells if model.any_order else self._draw_sequence
        yield from draw(model, condition, given_tokens, image_numbers, options)

    def _draw_sequence(
        self,
        model: ConditionalTransformer,
        condition: Tensor | None,
        given_tokens: Tensor,
        image_numbers: range,
        options: SamplingOptions,
    ) -> Iterator[tuple[Tensor, int]]:
        """Draws tokens in the model's order."""
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
            window = model.to_tokens(model.to_indices(tokens, grid_size)[:, rows, columns])
            # the window's token number `start` is the image's token number `done`
            choice = choose.narrow(done - run.start, model.num_tokens)
            prompt = model.prompt(condition, batch_size, run.row, run.column)
            decoder, prompt = self._decoder(model, choice, prompt, options)
            ends = range(run.start + 1, run.start + run.count + 1)
            for latest in decoder.decode(prompt, window, run.start, ends, choice.guided):
                tokens[:, done : done + 1] = latest
                done += 1
                yield tokens[:, :done], batch_size

    def _draw_cells(
        self,
        model: ConditionalTransformer,
        condition: Tensor | None,
        given_tokens: Tensor,
        image_numbers: range,
        options: SamplingOptions,
    ) -> Iterator[tuple[Tensor, int]]:
        """Draws the missing tokens in any order: in each window, after the tokens it knows."""
        grid_size = options.grid_size or model.grid_size
        windows = model.grid_size, options.stride, model.window_step
        check_windows(grid_size, *windows)
        condition = model.encode_condition(condition, grid_size)
        tokens = given_tokens.clone()  # (b n)
        numbers = torch.arange(tokens.shape[1], device=tokens.device)
        order = drawing_order(options, image_numbers, model.grid_size).to(tokens.device)
        ends = step_ends(model.num_tokens, options.num_steps)
        choose = TokenChoice.of(
            options, image_numbers, tokens.shape[1], model.device, num_scales=model.num_tokens
        )
        while (place := next_window(to_indices(tokens >= 0, grid_size), *windows)) is not None:
            row, column = place
            rows = slice(row, row + model.grid_size[0])
            columns = slice(column, column + model.grid_size[1])
            cells = to_tokens(to_indices(numbers[None], grid_size)[:, rows, columns])[0]  # (w)
            is_known = tokens[:, cells] >= 0  # (b w)
            window_order = known_first(order, is_known)  # (b w)
            for images in _alike(is_known, options.num_steps):
                own_order = window_order[images]  # (r w)
                own_known = is_known[images].gather(1, own_order)  # (r w)
                grid_order = cells[own_order]  # (r w)
                window = tokens[images].gather(1, grid_order)  # (r w)
                own_condition = None if condition is None else condition[images]
                prompt = model.prompt(own_condition, len(images), row, column)
                choice = choose.of_cells(images, grid_order)
                decoder, prompt = self._decoder(model, choice, prompt, options)
                num_known = int(own_known.sum(1).min())
                for latest in decoder.decode(
                    prompt, window, num_known, ends, choice.guided, own_order, own_known
                ):
                    tokens[images[:, None], grid_order] = window
                    yield tokens, latest.numel()

    def _decoder(
        self,
        model: ConditionalTransformer,
        choice: TokenChoice,
        prompt: Prompt,
        options: SamplingOptions,
    ) -> tuple[Decoder, Prompt]:
        """Returns the decoder of a window, and its prompts, also without condition for guidance."""
        if choice.scales is not None:
            nothing = model.conditioning.prompt(None, len(prompt.prefix), model.device)
            prompt = prompt.concatenate(nothing)
        arguments = model.transformer, choice, prompt, model.num_tokens
        if not options.compile:
            return Decoder(*arguments), prompt
        self.compiled = CompiledDecoder.reuse(self.compiled, *arguments)
        return self.compiled, prompt


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
    if not model.any_order and (options.order is not None or options.num_steps is not None):
        raise UserError(
            f"this model draws one token after the other in {model.transformer.config.order} order."
            " Leave order and num_steps out, or train a model with order=random or order=annealed."
        )
    if given_tokens is None:
        given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
    grid_size = options.grid_size or model.grid_size
    given_tokens = model.check_tokens(given_tokens, grid_size, partly=model.any_order)
    if len(given_tokens) != num_images:
        raise UserError(f"given_tokens has {len(given_tokens)} rows for {num_images} images.")
    if model.any_order:
        missing = math.prod(grid_size) - given_tokens.shape[1]
        given_tokens = F.pad(given_tokens, (0, missing), value=-1)
    if options.seed is None:
        options = replace(options, seed=int(torch.randint(2**62, ())))
    options = decide_compilation(options, model.device, model.grid_size, num_images)
    return options, condition, given_tokens


def _alike(is_known: Tensor, num_steps: int | None) -> list[Tensor]:
    """Groups images that can be drawn together: all, or with `num_steps` those that know as much.

    A step that draws several cells must see all known cells.

    Args:
        is_known: boolean `(b n)`.
        num_steps: see `SamplingOptions`.
    """
    images = torch.arange(len(is_known), device=is_known.device)
    if num_steps is None:
        return [images]
    counts = is_known.sum(1)
    groups = [images[counts == count] for count in counts.unique()]
    return [group for group in groups if not is_known[group].all()]


def _pad(rows: Tensor, count: int) -> Tensor:
    """Pads to `count` rows by repeating the last one."""
    return torch.cat([rows, rows[-1:].expand(count - len(rows), *rows.shape[1:])])
