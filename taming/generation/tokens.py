"""Draws tokens: the transformer with its condition, batch after batch, window after window."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import Condition, Conditioning, Prompt
from taming.generation.choice import TokenChoice
from taming.generation.decoding import CompiledSteps, Steps, decode_tokens
from taming.generation.options import SamplingOptions
from taming.generation.speed import decide_compilation
from taming.generation.window import plan_windows
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel
from taming.tokenizer import VQGAN, Tokenizer, height_and_width
from taming.transformer import GPT
from taming.transformer.orders import to_indices, to_tokens

__all__ = ["TokenGenerator"]


class TokenGenerator(PretrainedModel):
    """The part of an `ImageGenerator` that draws tokens; see there."""

    def __init__(
        self,
        tokenizer: VQGAN | None,
        transformer: GPT,
        conditioning: Conditioning,
        grid_size: int | Sequence[int],
        condition_tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        codebook_size = transformer.config.codebook_size
        if tokenizer is not None and tokenizer.codebook_size != codebook_size:
            raise UserError(
                f"the tokenizer has {tokenizer.codebook_size} codes and the transformer "
                f"{codebook_size}: they are not of the same model."
            )
        self.grid_size = height_and_width(grid_size)
        needed = conditioning.transformer_config(self.grid_size)
        for name in ("num_prefix_ids", "context_length"):
            if getattr(transformer.config, name) < needed[name]:
                raise UserError(
                    f"the transformer has {name}={getattr(transformer.config, name)}, and the "
                    f"condition and a grid of {self.grid_size} need {needed[name]}: they are not "
                    "of the same model."
                )
        self.transformer = transformer
        self.condition_tokenizer = condition_tokenizer
        self.tokenizer = tokenizer
        self.conditioning = conditioning
        self._compiled: CompiledSteps | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.grid_size[0] * self.grid_size[1]

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes in the order of their labels, where they are known."""
        return self.conditioning.class_names

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the results."""
        return self.transformer.head.weight.device

    def logits(self, tokens: Tensor, condition: Condition = None) -> Tensor:
        """Returns logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        Tokens are integers `(b n)`, n at most `num_tokens`; for the condition see `sample_tokens`.

        Returns:
            `(b n v)` on the model's device, with gradients where they are enabled.

        Raises:
            UserError: if tokens or condition do not fit the model.
        """
        prefix, tokens, context = self._inputs(tokens, condition)
        return self.transformer.token_logits(prefix, tokens, context)

    def token_losses(self, tokens: Tensor, condition: Condition = None) -> Tensor:
        """Returns −log p of each token in nats, `(b n)`, in less memory; see `logits`."""
        prefix, tokens, context = self._inputs(tokens, condition)
        return self.transformer.token_losses(prefix, tokens, context)

    def _inputs(self, tokens: Tensor, condition: Condition) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns prefix, tokens and context, checked, as the transformer takes them."""
        tokens = self._check_tokens(tokens, self.grid_size)
        encoded = self._encode_condition(
            self.conditioning.check(condition, len(tokens)), self.grid_size
        )
        prompt = self._prompt(encoded, len(tokens))
        return prompt.prefix, tokens, prompt.context

    def sample_tokens(
        self,
        num_images: int,
        condition: Condition = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float = 1.0,
        greedy: bool = False,
        seed: int | None = None,
        given_tokens: Tensor | None = None,
        *,
        options: SamplingOptions | None = None,
        progress: bool = False,
        first_image: int = 0,
    ) -> Tensor:
        """Draws the tokens of some images, in evaluation mode whatever mode the model is in.

        Every image has its own random numbers, which depend on the seed and its number alone:
        in which batch it is drawn makes no difference (float32; elsewhere up to rounding).

        - `num_images`: b.
        - `condition`: `(b,)` int64 class labels, or class names, or one name for all; or
          `(b c H W)` condition images, or their codes `(b h w)` int64; None for no condition.
        - `temperature` to `seed`: see `SamplingOptions`, and for `guidance_scale` `Guidance`.
        - `given_tokens`: `(b m)` fixed first tokens, integers, which the result includes.
        - `options`: all of how to sample, instead of the six arguments from `temperature` on.
        - `progress`: show a progress bar.
        - `first_image`: number of the first image, to draw a long series in several calls.

        Returns:
            `(b n)` int64 on the model's device.

        Raises:
            UserError: if an argument is out of range or not what the model was trained for.
        """
        options = SamplingOptions.of(
            options, temperature, top_k, top_p, guidance_scale, greedy, seed
        )
        options, condition, given_tokens = self._settle(
            options, num_images, condition, given_tokens
        )
        batch_size = options.batch_size or min(num_images, options.images_at_once)
        num_drawn = num_images
        if options.compile:
            num_drawn += -num_images % batch_size  # whole batches
            given_tokens = _pad(given_tokens, num_drawn)
            condition = None if condition is None else _pad(condition, num_drawn)
        numbers = range(first_image, first_image + num_drawn)
        height, width = options.grid_size or self.grid_size
        total = num_drawn * (height * width - given_tokens.shape[1])
        bar = tqdm(None, "sampling", total, unit=" tokens", unit_scale=True, disable=not progress)
        batches = []
        with bar, evaluation_mode(self.transformer):
            for start in range(0, num_drawn, batch_size):
                batch = slice(start, start + batch_size)
                part = None if condition is None else condition[batch]
                batches.append(given_tokens[batch])
                for tokens in self._draw(part, given_tokens[batch], numbers[batch], options):
                    batches[-1] = tokens
                    bar.update(len(tokens))
        return torch.cat(batches)[:num_images]

    def sample_rows(
        self,
        num_images: int,
        condition: Condition = None,
        given_tokens: Tensor | None = None,
        *,
        options: SamplingOptions,
    ) -> Iterator[Tensor]:
        """Draws the tokens that `sample_tokens` draws, as one batch, row after row.

        Yields:
            `(b m)` int64 on the model's device, whole rows of codes: the tokens so far. First the
            rows that are given, where there are any.
        """
        options, condition, given_tokens = self._settle(
            options, num_images, condition, given_tokens
        )
        _, width = options.grid_size or self.grid_size
        if num_given := given_tokens.shape[1] // width * width:
            yield given_tokens[:, :num_given]
        with evaluation_mode(self.transformer):
            for tokens in self._draw(condition, given_tokens, range(num_images), options):
                if tokens.shape[1] % width == 0:
                    yield tokens

    def _settle(
        self,
        options: SamplingOptions,
        num_images: int,
        condition: Condition,
        given_tokens: Tensor | None,
    ) -> tuple[SamplingOptions, Tensor | None, Tensor]:
        """Returns options with a seed, and condition and given tokens as tensors.

        Raises:
            UserError: see `sample_tokens`.
        """
        if num_images < 1:
            raise UserError(f"num_images is {num_images} and must be at least 1.")
        condition = self.conditioning.check(condition, num_images)
        if not options.guidance.is_off and condition is None:
            raise UserError("guidance strengthens a condition, and there is none: leave it out.")
        if not options.guidance.is_off and not self.conditioning.can_do_without:
            raise UserError("guidance needs a model trained with condition_dropout: leave it out.")
        if given_tokens is None:
            given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
        given_tokens = self._check_tokens(given_tokens, options.grid_size or self.grid_size)
        if len(given_tokens) != num_images:
            raise UserError(f"given_tokens are of {len(given_tokens)} images, not {num_images}.")
        if options.seed is None:
            options = replace(options, seed=int(torch.randint(2**62, ())))
        options = decide_compilation(options, self.device, self.grid_size, num_images)
        return options, condition, given_tokens

    def _draw(
        self,
        condition: Tensor | None,
        given_tokens: Tensor,
        image_numbers: range,
        options: SamplingOptions,
    ) -> Iterator[Tensor]:
        """Draws a batch, window after window; yields the tokens so far, with each new one."""
        grid_size = options.grid_size or self.grid_size
        batch_size, done = given_tokens.shape
        runs = plan_windows(
            grid_size, self.grid_size, options.stride, num_given=done, step=self.window_step
        )
        condition = self._encode_condition(condition, grid_size)
        tokens = given_tokens.new_zeros(batch_size, grid_size[0] * grid_size[1])
        tokens[:, :done] = given_tokens
        choose = TokenChoice.of(options, image_numbers, tokens.shape[1], self.device)
        for run in runs:
            rows = slice(run.row, run.row + self.grid_size[0])
            columns = slice(run.column, run.column + self.grid_size[1])
            before = to_tokens(to_indices(tokens, grid_size)[:, rows, columns])[:, : run.start]
            prompt = self._prompt(condition, batch_size, run.row, run.column)
            if choose.scales is not None:
                prompt = prompt.concatenate(self.conditioning.prompt(None, batch_size, self.device))
            # the window's token number `start` is the image's token number `done`
            choice = choose.narrow(done - run.start, self.num_tokens)
            arguments = self.transformer, choice, prompt, self.num_tokens
            if not options.compile:
                steps = Steps(*arguments)
            elif self._compiled is not None and self._compiled.fits(*arguments):
                steps = self._compiled
                self._compiled.choose.copy_(choice)
            else:
                steps = self._compiled = CompiledSteps(*arguments)
            end = run.start + run.count
            for latest in decode_tokens(steps, prompt, before, end, choice.guided):
                tokens[:, done] = latest
                done += 1
                yield tokens[:, :done]

    def _prompt(
        self, condition: Tensor | None, batch_size: int, row: int = 0, column: int = 0
    ) -> Prompt:
        """Builds the prompts for a condition from `_encode_condition`.

        For a code grid larger than the trained one, it is the part in the window that begins at
        this row and column.
        """
        if condition is not None and self.conditioning.takes_images:
            height, width = self.conditioning.grid_size
            row = row * height // self.grid_size[0]
            column = column * width // self.grid_size[1]
            condition = to_tokens(condition[:, row : row + height, column : column + width])
        return self.conditioning.prompt(condition, batch_size, self.device)

    def _encode_condition(
        self, condition: Tensor | None, grid_size: tuple[int, int]
    ) -> Tensor | None:
        """Returns codes `(b h w)` for condition images, labels as they are; on the device."""
        if condition is None:
            return None
        condition = condition.to(self.device)
        if not self.conditioning.takes_images:
            return condition
        if condition.is_floating_point():
            with torch.no_grad():
                condition = self.require_condition_tokenizer().encode(condition)  # (b h w)
        needed = self.condition_grid_size(grid_size)
        if condition.shape[1:] != needed:
            raise UserError(
                f"the condition images have {condition.shape[1]} × {condition.shape[2]} codes, and "
                f"need {needed[0]} × {needed[1]} of them: give condition images of another size."
            )
        return condition

    def condition_grid_size(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """Returns (height, width) in codes of the condition image for an image of this size."""
        sizes = zip(self.conditioning.grid_size, grid_size, self.grid_size, strict=True)
        height, width = (condition * size // trained for condition, size, trained in sizes)
        return height, width

    @property
    def window_step(self) -> tuple[int, int]:
        """The (rows, columns) step that aligns windows with the condition's cells."""
        if not self.conditioning.takes_images:
            return 1, 1
        (height, width), (rows, columns) = self.grid_size, self.conditioning.grid_size
        return height // math.gcd(height, rows), width // math.gcd(width, columns)

    def require_condition_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of condition images; raises a `UserError` if there is none."""
        if self.condition_tokenizer is None:
            raise UserError("this generator was saved without its tokenizer for condition images.")
        return self.condition_tokenizer

    def _check_tokens(self, tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
        """Checks tokens of whole or partial images of this size; returns int64 on the device."""
        most, codebook_size = grid_size[0] * grid_size[1], self.transformer.config.codebook_size
        if tokens.ndim != 2 or tokens.shape[1] > most or tokens.is_floating_point():
            raise UserError(
                f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}, and must be whole "
                f"numbers (b, n) with n at most {most}, the tokens of an image."
            )
        tokens = tokens.long()
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < codebook_size:
            raise UserError(
                f"tokens are {int(tokens.min())} to {int(tokens.max())}, and the codes of this "
                f"model 0 to {codebook_size - 1}: were they made by another tokenizer?"
            )
        return tokens.to(self.device)


def _pad(rows: Tensor, count: int) -> Tensor:
    """Pads to `count` rows by repeating the last one."""
    return torch.cat([rows, rows[-1:].expand(count - len(rows), *rows.shape[1:])])
