"""The image generator: tokenizer, transformer and conditioning together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from taming.conditioning import (
    CellClasses,
    Conditioning,
    ImageCondition,
    Prompt,
    conditioning_from_config,
)
from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.generation.checks import (
    check_condition,
    check_first_image,
    check_given_tokens,
    check_grid_size,
    check_guidance,
    check_keep_rows,
    check_parts,
    check_tokens,
)
from taming.generation.choice import TokenChoice, random_numbers
from taming.generation.compiled import CompiledSteps
from taming.generation.drawing import draw_tokens
from taming.generation.guidance import Guidance
from taming.generation.saved_parts import check_saved, load_condition_tokenizer
from taming.generation.window import WindowRun, plan_windows
from taming.sequence import to_indices, to_tokens
from taming.serialization import PretrainedModel, SavedModel
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["ImageGenerator"]

BATCH_SIZE = 64


class ImageGenerator(PretrainedModel):
    """Draws tokens with the transformer and shows them as images with the tokenizer.

    Args:
        tokenizer: the VQGAN whose codes the tokens are; without one there are tokens, not images.
        transformer: the GPT.
        conditioning: what can be asked for.
        grid_size: (height, width) of the code grid; a single number means square.
        condition_tokenizer: makes tokens of condition images, where they are what is asked for.

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
        condition_tokenizer: VQGAN | CellClasses | None = None,
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

    def logits(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        """Logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        Args:
            tokens: `(b n)` of integers, n at most `num_tokens`.
            condition: `(b,)` int64 class labels, or `(b c H W)` condition images, or their codes
                `(b h w)` int64; None asks for nothing in particular.

        Returns:
            `(b n v)` on the model's device, with gradients where they are enabled.

        Raises:
            UserError: if tokens or condition are none of the model's.
        """
        tokens = check_tokens(tokens, self.transformer.codebook_size)
        check_condition(condition, self.conditioning, len(tokens))
        asked_for = self._encoded(condition, self.grid_size)
        prompt = self._prompt(asked_for, len(tokens))
        return self.transformer.token_logits(prompt.prefix, tokens.to(self.device), prompt.context)

    def sample_tokens(
        self,
        num_images: int,
        condition: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float = 1.0,
        greedy: bool = False,
        seed: int | None = None,
        given_tokens: Tensor | None = None,
        *,
        guidance_schedule: str = "constant",
        guidance_power: float = 1.0,
        guidance_interval: Sequence[float] = (0.0, 1.0),
        grid_size: int | Sequence[int] | None = None,
        stride: int | None = None,
        compile: bool = False,
        batch_size: int | None = None,
        first_image: int = 0,
        progress: bool = False,
    ) -> Tensor:
        """Draws the tokens of some images, in evaluation mode whatever mode the model is in.

        Every image has its own random numbers, which depend on the seed and its number alone:
        in which batch it is drawn makes no difference (float32; elsewhere up to rounding).

        Args:
            num_images: number of images.
            condition: `(num_images,)` int64 class labels, or `(num_images c H W)` condition images,
                or their codes `(num_images h w)` int64; None asks for nothing in particular.
            temperature: more than 0; below 1 is more of the probable, above 1 less.
            top_k: draw among this many most probable tokens; None for all.
            top_p: draw among the most probable tokens that have this probability together.
            guidance_scale: how strongly the condition is followed, 1 as trained; see `Guidance`.
            greedy: take the most probable token each time; temperature, top-k, top-p and seed have
                no effect.
            seed: not negative; None takes one from PyTorch's global random state.
            given_tokens: `(num_images m)` fixed first tokens, integers, which the result includes.
            guidance_schedule: how the scale changes from token to token, see `Guidance`.
            guidance_power: likewise.
            guidance_interval: likewise.
            grid_size: (height, width) of larger images, in codes, one number for a square: they are
                drawn through a sliding window of the trained size; None for that size.
            stride: of the window, see `taming.generation.plan_windows`.
            compile: compile the step: slow to start, then faster; the same tokens up to rounding.
            batch_size: images drawn at once, which bounds the memory; None: all, at most 64. Where
                the step is compiled, for batches of this size, a smaller one is filled up.
            first_image: number of the first image, to draw a long series in several calls.
            progress: show a progress bar.

        Returns:
            `(num_images n)` int64 on the model's device.

        Raises:
            UserError: if an argument is out of range or not what the model was trained for.
        """
        if batch_size is None:
            batch_size = min(max(num_images, 1), BATCH_SIZE)
        if num_images < 1 or batch_size < 1:
            raise UserError(
                f"num_images is {num_images} and batch_size {batch_size}: both must be at least 1."
            )
        check_first_image(first_image)
        size = self._grid_size_of(grid_size)
        num_tokens = size[0] * size[1]
        guidance = Guidance(guidance_scale, guidance_schedule, guidance_power, guidance_interval)
        check_guidance(guidance, self.conditioning, asked=condition is not None)
        scales = None if guidance.is_off else guidance.scales(num_tokens).to(self.device)
        if given_tokens is None:
            given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
        codebook_size = self.transformer.codebook_size
        given_tokens = check_given_tokens(given_tokens, num_images, num_tokens, codebook_size)
        given_tokens = given_tokens.to(self.device)
        runs = self.plan_windows(size, stride, num_given=given_tokens.shape[1])
        check_condition(condition, self.conditioning, num_images)
        if seed is None:
            seed = int(torch.randint(2**62, ()))

        batches = []
        num_new = num_images * (num_tokens - given_tokens.shape[1])
        with _progress_bar(num_new, progress) as bar, evaluation_mode(self.transformer):
            for start in range(0, num_images, batch_size):
                count = min(batch_size, num_images - start)
                num_drawn = batch_size if compile else count
                wanted = None if condition is None else _batch(condition, start, count, num_drawn)
                asked_for = self._encoded(wanted, size)
                uniforms = None
                if not greedy:
                    numbers = range(first_image + start, first_image + start + num_drawn)
                    uniforms = random_numbers(seed, numbers, num_tokens)  # (b n)
                    if self.device.type == "mps":
                        uniforms = uniforms.float()
                    uniforms = uniforms.to(self.device)
                prompt_for = partial(self._prompt, asked_for, num_drawn, not guidance.is_off)
                tokens = draw_tokens(
                    self.transformer,
                    prompt_for,
                    _batch(given_tokens, start, count, num_drawn),
                    TokenChoice(uniforms, scales, temperature, top_k, top_p),
                    runs,
                    grid_size=size,
                    window=self.grid_size,
                    on_step=partial(bar.update, count),
                    compiled=self._compiled_steps if compile else None,
                )
                batches.append(tokens[:count])
        return torch.cat(batches)

    def sample(
        self, num_images: int, condition: Tensor | None = None, *settings: Any, **named: Any
    ) -> Tensor:
        """Draws images; the arguments are those of `sample_tokens`.

        Returns:
            `(num_images c H W)` on the model's device, in [-1, 1]; of a tokenizer of label maps
            logits of the classes.
        """
        self.require_tokenizer()
        tokens = self.sample_tokens(num_images, condition, *settings, **named)
        batches = tokens.split(named.get("batch_size") or BATCH_SIZE)
        return torch.cat([self._decode(batch, named.get("grid_size")) for batch in batches])

    def complete(
        self, images: Tensor, keep_rows: int, condition: Tensor | None = None, **settings: Any
    ) -> Tensor:
        """Keeps the first rows of images and generates the rest.

        Args:
            images: `(b c H W)` in [-1, 1]; of the trained size, or larger with the sliding window.
            keep_rows: rows of codes that are kept, at least 1 and not all.
            condition: see `sample_tokens`.
            settings: likewise, but for `grid_size`, which is the images'.

        Returns:
            `(b c H W)`, the kept rows as the tokenizer shows them.

        Raises:
            UserError: also if the images do not fit the tokenizer.
        """
        batches = images.split(max(settings.get("batch_size") or BATCH_SIZE, 1))
        given = torch.cat([self.first_tokens(batch, keep_rows) for batch in batches])
        grid_size = self.require_tokenizer().grid_size_for(images.shape[2:])
        return self.sample(
            len(images), condition, given_tokens=given, grid_size=grid_size, **settings
        )

    @torch.no_grad()
    def first_tokens(self, images: Tensor, keep_rows: int) -> Tensor:
        """The tokens of images' first rows, as `sample_tokens` is given them.

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
            `(b c H W)` in [-1, 1]; of a tokenizer of label maps logits of the classes.

        Raises:
            UserError: if there is no tokenizer, or the tokens are none of its codes.
        """
        return self._decode(check_tokens(tokens, self.transformer.codebook_size), grid_size)

    @torch.no_grad()
    def _decode(self, tokens: Tensor, grid_size: int | Sequence[int] | None = None) -> Tensor:
        tokenizer = self.require_tokenizer()
        with evaluation_mode(tokenizer):
            indices = to_indices(tokens.to(self.device), self._grid_size_of(grid_size))
            images = tokenizer.decode(indices)
        return images if tokenizer.label_maps else images.clamp(-1.0, 1.0)

    def condition_grid_size(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) in codes of the condition image for an image of this (height, width)."""
        assert isinstance(self.conditioning, ImageCondition)
        sizes = zip(self.conditioning.grid_size, grid_size, self.grid_size, strict=True)
        height, width = (condition * size // trained for condition, size, trained in sizes)
        return height, width

    def plan_windows(
        self, grid_size: tuple[int, int], stride: int | None = None, *, num_given: int = 0
    ) -> list[WindowRun]:
        """The function of this name, where the window cuts through no cell of a condition image."""
        step = (1, 1)
        if isinstance(self.conditioning, ImageCondition):
            sides = zip(self.grid_size, self.conditioning.grid_size, strict=True)
            rows, columns = (
                trained // math.gcd(trained, condition) for trained, condition in sides
            )
            step = rows, columns
        return plan_windows(grid_size, self.grid_size, stride, num_given=num_given, step=step)

    def to_saved(self) -> SavedModel:
        """The generator as plain data, each part with its own config and weights."""
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
        check_saved(saved)
        tokenizer = None
        if "tokenizer" in saved.parts:
            tokenizer = VQGAN.from_saved(saved.parts["tokenizer"])
        return cls(
            tokenizer,
            GPT.from_saved(saved.parts["transformer"]),
            conditioning_from_config(saved.config["conditioning"]),
            saved.config["grid_size"],
            condition_tokenizer=load_condition_tokenizer(saved),
        ).eval()

    def require_tokenizer(self) -> VQGAN:
        """The tokenizer.

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

    def require_condition_tokenizer(self) -> VQGAN | CellClasses:
        """What makes tokens of condition images.

        Raises:
            UserError: if there is none.
        """
        if self.condition_tokenizer is None:
            raise UserError(
                "this generator has no tokenizer for condition images: save it with the one it was "
                "trained with."
            )
        return self.condition_tokenizer

    def _encoded(self, condition: Tensor | None, grid_size: tuple[int, int]) -> Tensor | None:
        """A condition image as its codes `(b h w)`, others as they are; on the model's device."""
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
        asked_for: Tensor | None,
        batch_size: int,
        guided: bool = False,
        run: WindowRun | None = None,
    ) -> Prompt:
        """What the transformer is given: `asked_for` as `_encoded` returns it.

        With guidance, b prompts with condition and b without. Of a code grid larger than the
        trained one the part is taken that belongs to the window of `run`.
        """
        if asked_for is not None and isinstance(self.conditioning, ImageCondition):
            height, width = self.conditioning.grid_size
            row = 0 if run is None else run.row * height // self.grid_size[0]
            column = 0 if run is None else run.column * width // self.grid_size[1]
            asked_for = to_tokens(asked_for[:, row : row + height, column : column + width])
        prompt = self.conditioning.prompt(asked_for, batch_size, self.device)
        if guided:
            prompt = prompt.and_then(self.conditioning.prompt(None, batch_size, self.device))
        return prompt

    def _compiled_steps(self, choose: TokenChoice, prompt: Prompt) -> CompiledSteps:
        """Those of the last batch, if they will do."""
        arguments = self.transformer, choose, prompt, self.num_tokens
        if self._compiled is None or not self._compiled.fits(*arguments):
            self._compiled = CompiledSteps(*arguments)
        return self._compiled

    def _grid_size_of(self, grid_size: int | Sequence[int] | None) -> tuple[int, int]:
        return self.grid_size if grid_size is None else check_grid_size(grid_size)


def _batch(rows: Tensor, start: int, count: int, size: int) -> Tensor:
    """So many rows, the last one again until they are a batch of this size."""
    batch = rows[start : start + count]
    if count == size:
        return batch
    return torch.cat([batch, batch[-1:].expand(size - count, *batch.shape[1:])])


def _progress_bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, disable=not shown, desc="sampling", unit=" tokens", unit_scale=True)
