"""The image generator: tokenizer, transformer and conditioning together."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import (
    CellClasses,
    Conditioning,
    ImageCondition,
    Prompt,
    Tokenizer,
    conditioning_from_config,
)
from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.generation.checks import (
    as_condition,
    check_guidance,
    check_keep_rows,
    check_parts,
    check_tokens,
)
from taming.generation.choice import TokenChoice, random_numbers
from taming.generation.decoding import decode_grid
from taming.generation.options import SamplingOptions, check_grid_size
from taming.generation.steps import CompiledSteps, Steps
from taming.generation.window import WindowRun, plan_windows
from taming.sequence import to_indices, to_tokens
from taming.serialization import PretrainedModel, SavedModel
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["ImageGenerator", "load_condition_tokenizer"]

BATCH_SIZE = 64
Condition = Tensor | str | Sequence[str] | None


class ImageGenerator(PretrainedModel):
    """Draws tokens with the transformer and shows them as images with the tokenizer.

    Args:
        tokenizer: the VQGAN whose codes the tokens are; without one there are tokens, not images.
        transformer: the GPT.
        conditioning: which conditions there are.
        grid_size: (height, width) of the code grid; a single number means square.
        condition_tokenizer: makes tokens of condition images, where the model takes such.

    Raises:
        UserError: if the parts do not fit each other.
    """

    kind = "generator"

    def __init__(
        self,
        tokenizer: VQGAN | None,
        transformer: GPT,
        conditioning: Conditioning,
        grid_size: int | Sequence[int],
        condition_tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        self.grid_size = check_grid_size(grid_size)
        self.tokenizer = tokenizer
        self.transformer = transformer
        self.condition_tokenizer = condition_tokenizer
        self.conditioning = conditioning
        self._compiled: CompiledSteps | None = None
        check_parts(transformer, conditioning, self.grid_size, tokenizer, condition_tokenizer)

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.grid_size[0] * self.grid_size[1]

    @property
    def resolution(self) -> tuple[int, int]:
        """(height, width) of an image in pixels; its tokenizer's may have been another."""
        factor = self.require_tokenizer().downsample_factor
        return self.grid_size[0] * factor, self.grid_size[1] * factor

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of their labels, where they are known."""
        return self.conditioning.class_names

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the results."""
        return self.transformer.head.weight.device

    def logits(self, tokens: Tensor, condition: Condition = None) -> Tensor:
        """Returns logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        Args:
            tokens: `(b n)` of integers, n at most `num_tokens`.
            condition: see `sample_tokens`.

        Returns:
            `(b n v)` on the model's device, with gradients where they are enabled.

        Raises:
            UserError: if tokens or condition do not fit the model.
        """
        tokens = self._check_tokens(tokens, self.grid_size)
        condition = as_condition(condition, self.conditioning, len(tokens))
        prompt = self._prompt(self._encoded(condition, self.grid_size), len(tokens))
        return self.transformer.token_logits(prompt.prefix, tokens.to(self.device), prompt.context)

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

        Args:
            num_images: number of images.
            condition: `(num_images,)` int64 class labels, or class names, or one name for all; or
                `(num_images c H W)` condition images, or their codes `(num_images h w)` int64;
                None for no condition.
            temperature: see `SamplingOptions`.
            top_k: likewise.
            top_p: likewise.
            guidance_scale: how strongly the condition is followed, 1 as trained; see `Guidance`.
            greedy: see `SamplingOptions`.
            seed: likewise.
            given_tokens: `(num_images m)` fixed first tokens, integers, which the result includes.
            options: all of how to sample, instead of the six arguments above.
            progress: show a progress bar.
            first_image: number of the first image, to draw a long series in several calls.

        Returns:
            `(num_images n)` int64 on the model's device.

        Raises:
            UserError: if an argument is out of range or not what the model was trained for.
        """
        options = SamplingOptions.of(
            options, temperature, top_k, top_p, guidance_scale, greedy, seed
        )
        if num_images < 1 or first_image < 0:
            raise UserError(
                f"num_images is {num_images} and must be at least 1, first_image is {first_image} "
                "and must not be negative."
            )
        size = self._grid_size_of(options.grid_size)
        condition = as_condition(condition, self.conditioning, num_images)
        check_guidance(options.guidance, self.conditioning, has_condition=condition is not None)
        if given_tokens is None:
            given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
        given_tokens = self._check_tokens(given_tokens, size).to(self.device)
        if len(given_tokens) != num_images:
            raise UserError(f"given_tokens are of {len(given_tokens)} images, not {num_images}.")
        runs = self.plan_windows(size, options.stride, num_given=given_tokens.shape[1])
        if options.seed is None:
            options = replace(options, seed=int(torch.randint(2**62, ())))

        batch_size = options.batch_size or min(num_images, BATCH_SIZE)
        batches = []
        num_new = num_images * (size[0] * size[1] - given_tokens.shape[1])
        with (
            tqdm(
                total=num_new,
                disable=not progress,
                desc="sampling",
                unit=" tokens",
                unit_scale=True,
            ) as bar,
            evaluation_mode(self.transformer),
        ):
            for start in range(0, num_images, batch_size):
                count = min(batch_size, num_images - start)
                num_drawn = batch_size if options.compile else count
                wanted = None if condition is None else _batch(condition, start, count, num_drawn)
                numbers = range(first_image + start, first_image + start + num_drawn)
                tokens = decode_grid(
                    self._compiled_steps if options.compile else self._steps,
                    partial(
                        self._prompt,
                        self._encoded(wanted, size),
                        num_drawn,
                        not options.guidance.is_off,
                    ),
                    _batch(given_tokens, start, count, num_drawn),
                    self._choice(options, numbers, size[0] * size[1]),
                    runs,
                    grid_size=size,
                    window=self.grid_size,
                    on_step=partial(bar.update, count),
                )
                batches.append(tokens[:count])
        return torch.cat(batches)

    def sample(
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
        """Draws images; the arguments are those of `sample_tokens`.

        Returns:
            `(num_images c H W)` on the model's device, in [-1, 1]; with a tokenizer of label maps
            logits of the classes.
        """
        self.require_tokenizer()
        options = SamplingOptions.of(
            options, temperature, top_k, top_p, guidance_scale, greedy, seed
        )
        tokens = self.sample_tokens(
            num_images,
            condition,
            given_tokens=given_tokens,
            options=options,
            progress=progress,
            first_image=first_image,
        )
        batches = tokens.split(options.batch_size or BATCH_SIZE)
        return torch.cat([self._decode(batch, options.grid_size) for batch in batches])

    def complete(
        self,
        images: Tensor,
        keep_rows: int,
        condition: Condition = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float = 1.0,
        greedy: bool = False,
        seed: int | None = None,
        *,
        options: SamplingOptions | None = None,
        progress: bool = False,
        first_image: int = 0,
    ) -> Tensor:
        """Keeps the first rows of images and generates the rest.

        Images, `(b c H W)` in [-1, 1], may be larger than the trained size, and are then completed
        through the sliding window; at least one row of codes is kept, and not all. The other
        arguments are those of `sample_tokens`.

        Returns:
            `(b c H W)`, the kept rows as the tokenizer shows them.

        Raises:
            UserError: also if the images do not fit the tokenizer.
        """
        options = SamplingOptions.of(
            options, temperature, top_k, top_p, guidance_scale, greedy, seed
        )
        batches = images.split(options.batch_size or BATCH_SIZE)
        given_tokens = torch.cat([self.first_tokens(batch, keep_rows) for batch in batches])
        grid_size = self.require_tokenizer().grid_size_for(images.shape[2:])
        return self.sample(
            len(images),
            condition,
            given_tokens=given_tokens,
            options=replace(options, grid_size=grid_size),
            progress=progress,
            first_image=first_image,
        )

    @torch.no_grad()
    def first_tokens(self, images: Tensor, keep_rows: int) -> Tensor:
        """Returns the tokens of images' first rows, as `sample_tokens` takes them.

        Args:
            images: `(b c H W)` in [-1, 1].
            keep_rows: rows of codes, at least 1 and not all.

        Returns:
            `(b m)` int64 on the model's device.

        Raises:
            UserError: also if the images do not fit the tokenizer.
        """
        indices = self.require_tokenizer().encode(images.to(self.device))  # (b h w)
        check_keep_rows(keep_rows, indices.shape[1])
        return to_tokens(indices[:, :keep_rows])

    def decode(self, tokens: Tensor, grid_size: int | Sequence[int] | None = None) -> Tensor:
        """Shows tokens as images.

        Args:
            tokens: `(b n)` of integers.
            grid_size: (height, width) of larger images, in codes, one number for a square.

        Returns:
            `(b c H W)` in [-1, 1]; with a tokenizer of label maps logits of the classes.

        Raises:
            UserError: if there is no tokenizer, or the tokens are not its codes.
        """
        return self._decode(self._check_tokens(tokens, self._grid_size_of(grid_size)), grid_size)

    @torch.no_grad()
    def _decode(self, tokens: Tensor, grid_size: int | Sequence[int] | None = None) -> Tensor:
        tokenizer = self.require_tokenizer()
        with evaluation_mode(tokenizer):
            indices = to_indices(tokens.to(self.device), self._grid_size_of(grid_size))
            images = tokenizer.decode(indices)
        return images if tokenizer.label_maps else images.clamp(-1.0, 1.0)

    def condition_grid_size(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """Returns (height, width) in codes of the condition image for an image of this size."""
        assert isinstance(self.conditioning, ImageCondition)
        sizes = zip(self.conditioning.grid_size, grid_size, self.grid_size, strict=True)
        height, width = (condition * size // trained for condition, size, trained in sizes)
        return height, width

    def plan_windows(
        self, grid_size: tuple[int, int], stride: int | None = None, *, num_given: int = 0
    ) -> list[WindowRun]:
        """Calls `plan_windows` so that no window cuts through a cell of a condition image."""
        step = (1, 1)
        if isinstance(self.conditioning, ImageCondition):
            sides = zip(self.grid_size, self.conditioning.grid_size, strict=True)
            rows, columns = (
                trained // math.gcd(trained, condition) for trained, condition in sides
            )
            step = rows, columns
        return plan_windows(grid_size, self.grid_size, stride, num_given=num_given, step=step)

    def to_saved(self) -> SavedModel:
        """Returns the generator as plain data, each part with its own config and weights."""
        config: dict[str, Any] = {
            "grid_size": list(self.grid_size),
            "conditioning": self.conditioning.config(),
        }
        parts = {"transformer": self.transformer.to_saved()}
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer.to_saved()
        if self.condition_tokenizer is not None:
            parts["condition_tokenizer"] = self.condition_tokenizer.to_saved()
        return SavedModel(self.kind, config, parts=parts)

    @classmethod
    def from_saved(cls, saved: SavedModel) -> Self:
        """Rebuilds a generator, in eval mode.

        Raises:
            UserError: if it is of another kind, or incomplete.
        """
        saved.require(cls.kind)
        missing = {"grid_size", "conditioning"} - set(saved.config)
        missing |= {"transformer"} - set(saved.parts)
        if missing:
            raise UserError(
                f"the generator in {saved.source} is incomplete: it has no "
                f"{', '.join(sorted(missing))}."
            )
        tokenizer = saved.parts.get("tokenizer")
        return cls(
            None if tokenizer is None else VQGAN.from_saved(tokenizer),
            GPT.from_saved(saved.parts["transformer"]),
            conditioning_from_config(saved.config["conditioning"]),
            saved.config["grid_size"],
            condition_tokenizer=load_condition_tokenizer(saved),
        ).eval()

    def require_tokenizer(self) -> VQGAN:
        """Returns the tokenizer.

        Raises:
            UserError: if there is none: it says how the generator gets one.
        """
        if self.tokenizer is None:
            raise UserError(
                "this generator has no tokenizer, so it draws tokens but no images: save it with "
                "the VQGAN it was trained on. A LlamaGen GPT gets one as it is imported: "
                "import_checkpoint source=llamagen_gpt checkpoint=… config=… output=… "
                "tokenizer=DIR, where DIR holds the imported tokenizer."
            )
        return self.tokenizer

    def require_condition_tokenizer(self) -> Tokenizer:
        """Returns what makes tokens of condition images.

        Raises:
            UserError: if there is none.
        """
        if self.condition_tokenizer is None:
            raise UserError(
                "this generator has no tokenizer for condition images: save it with the one it was "
                "trained with."
            )
        return self.condition_tokenizer

    def _check_tokens(self, tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
        codebook_size = self.transformer.config.codebook_size
        return check_tokens(tokens, codebook_size, grid_size[0] * grid_size[1])

    def _encoded(self, condition: Tensor | None, grid_size: tuple[int, int]) -> Tensor | None:
        """Returns codes `(b h w)` for condition images, labels as they are; on the device."""
        if condition is None:
            return None
        indices = condition = condition.to(self.device)
        if not self.conditioning.takes_images:
            return condition
        if condition.is_floating_point():
            with torch.no_grad():
                indices = self.require_condition_tokenizer().encode(condition)  # (b h w)
        needed = self.condition_grid_size(grid_size)
        if indices.shape[1:] != needed:
            raise UserError(
                f"the condition images have {indices.shape[1]} × {indices.shape[2]} codes, and "
                f"images of {grid_size[0]} × {grid_size[1]} codes need {needed[0]} × {needed[1]} "
                "of them: give condition images of another size."
            )
        return indices

    def _prompt(
        self,
        condition: Tensor | None,
        batch_size: int,
        guided: bool = False,
        run: WindowRun | None = None,
    ) -> Prompt:
        """Returns what the transformer reads for a condition from `_encoded`.

        With guidance, b prompts with condition and b without. Of a code grid larger than the
        trained one it is the part that belongs to the window of `run`.
        """
        if condition is not None and isinstance(self.conditioning, ImageCondition):
            height, width = self.conditioning.grid_size
            row = 0 if run is None else run.row * height // self.grid_size[0]
            column = 0 if run is None else run.column * width // self.grid_size[1]
            condition = to_tokens(condition[:, row : row + height, column : column + width])
        prompt = self.conditioning.prompt(condition, batch_size, self.device)
        if guided:
            prompt = prompt.and_then(self.conditioning.prompt(None, batch_size, self.device))
        return prompt

    def _choice(self, options: SamplingOptions, numbers: range, num_tokens: int) -> TokenChoice:
        """Returns how tokens are chosen for the images of these numbers."""
        uniforms = scales = None
        if not options.greedy:
            assert options.seed is not None
            uniforms = random_numbers(options.seed, numbers, num_tokens)  # (b n)
            if self.device.type == "mps":
                uniforms = uniforms.float()  # it has no float64
            uniforms = uniforms.to(self.device)
        if not options.guidance.is_off:
            scales = options.guidance.scales(num_tokens).to(self.device)
        return TokenChoice(uniforms, scales, options.temperature, options.top_k, options.top_p)

    def _steps(self, choose: TokenChoice, prompt: Prompt) -> Steps:
        return Steps(self.transformer, choose, prompt, self.num_tokens)

    def _compiled_steps(self, choose: TokenChoice, prompt: Prompt) -> Steps:
        """Returns the compiled steps of the previous batch, if reusable, or new ones."""
        arguments = self.transformer, choose, prompt, self.num_tokens
        if self._compiled is None or not self._compiled.fits(*arguments):
            self._compiled = CompiledSteps(*arguments)
        self._compiled.choose.copy_(choose)
        return self._compiled

    def _grid_size_of(self, grid_size: int | Sequence[int] | None) -> tuple[int, int]:
        return self.grid_size if grid_size is None else check_grid_size(grid_size)


def load_condition_tokenizer(saved: SavedModel) -> VQGAN | CellClasses | None:
    """Rebuilds a saved generator's tokenizer of condition images; None if it has none."""
    part = saved.parts.get("condition_tokenizer")
    if part is None:
        return None
    return (CellClasses if part.kind == CellClasses.kind else VQGAN).from_saved(part)


def _batch(rows: Tensor, start: int, count: int, size: int) -> Tensor:
    """Returns some rows, the last one again until they are a batch of this size."""
    batch = rows[start : start + count]
    if count == size:
        return batch
    return torch.cat([batch, batch[-1:].expand(size - count, *batch.shape[1:])])
