"""The image generator: tokenizer, transformer and conditioning together."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import Ge
from pydantic import TypeAdapter
from torch import Tensor

from taming.conditioning import Condition, conditioning_from_config
from taming.generation.options import SamplingOptions
from taming.generation.speed import SamplingDtype, decide_compilation, use_dtype
from taming.generation.tokens import TokenGenerator
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError
from taming.runtime.hardware import device_name
from taming.serialization import SavedModel, load_saved_model, rebuilding
from taming.tokenizer import VQGAN, CellClasses, Tokenizer, height_and_width
from taming.transformer import GPT
from taming.transformer.orders import to_indices, to_tokens

__all__ = ["ImageGenerator", "check_keep_rows", "load_condition_tokenizer", "load_model"]

GRID_SIZE = TypeAdapter(tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]])

log = logging.getLogger("taming")

PIXELS_AT_ONCE = 2**19  # 8 images of 256×256; a feature map of 128 channels then has 256 MiB


class ImageGenerator(TokenGenerator):
    """Draws tokens with the transformer and shows them as images with the tokenizer.

    Args:
        tokenizer: the VQGAN whose codes the tokens are; without one there are tokens, not images.
        transformer: the GPT.
        conditioning: the kind of condition.
        grid_size: (height, width) of the code grid; a single number means square.
        condition_tokenizer: encodes condition images, for a model that takes them.

    Raises:
        UserError: if the parts do not fit each other.
    """

    kind = "generator"

    @property
    def resolution(self) -> tuple[int, int]:
        """(height, width) of an image in pixels; its tokenizer's may have been another."""
        factor = self.require_tokenizer().downsample_factor
        return self.grid_size[0] * factor, self.grid_size[1] * factor

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
        tokens = self.sample_tokens(
            num_images,
            condition,
            temperature,
            top_k,
            top_p,
            guidance_scale,
            greedy,
            seed,
            given_tokens,
            options=options,
            progress=progress,
            first_image=first_image,
        )
        return self.decode(tokens, None if options is None else options.grid_size)

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
        """Keeps the first rows of codes of images and generates the rest.

        Images, `(b c H W)` in [-1, 1], may be larger than the trained size, and are then completed
        through the sliding window. The other arguments are those of `sample_tokens`.

        Returns:
            `(b c H W)`, the kept rows as the tokenizer shows them.
        """
        options = SamplingOptions.of(
            options, temperature, top_k, top_p, guidance_scale, greedy, seed
        )
        batches = images.split(options.images_at_once)
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
        """Returns the tokens `(b m)` of the first rows of images, `(b c H W)` in [-1, 1]."""
        indices = self.require_tokenizer().encode(images.to(self.device))  # (b h w)
        check_keep_rows(keep_rows, indices.shape[1])
        return to_tokens(indices[:, :keep_rows])

    @torch.no_grad()
    def decode(self, tokens: Tensor, grid_size: int | Sequence[int] | None = None) -> Tensor:
        """Shows tokens, integers `(b n)`, as images; larger ones need their `grid_size` in codes.

        The decoder takes as many images at once as it needs to be busy: more would need more memory
        and be no faster.

        Returns:
            `(b c H W)` in [-1, 1]; with a tokenizer of label maps logits of the classes.

        Raises:
            UserError: if there is no tokenizer, the tokens are not its codes, or the images are not
                finite.
        """
        tokenizer = self.require_tokenizer()
        height, width = self.grid_size if grid_size is None else height_and_width(grid_size)
        tokens = self._check_tokens(tokens, (height, width))
        if tokens.shape[1] < height * width:
            raise UserError(f"{height} × {width} codes are not {tokens.shape[1]} tokens.")
        pixels = height * width * tokenizer.downsample_factor**2
        batches = tokens.split(max(1, PIXELS_AT_ONCE // pixels))
        with evaluation_mode(tokenizer):
            decoded = [tokenizer.decode(to_indices(batch, (height, width))) for batch in batches]
        images = torch.cat(decoded)
        if not images.isfinite().all():
            raise UserError(
                "the decoder's images are not finite numbers: the training of its VQGAN diverged "
                "or its weights are damaged. Use an earlier checkpoint."
            )
        images = images.to(torch.promote_types(images.dtype, torch.float32))  # for bytes from it
        return images if tokenizer.label_maps else images.clamp(-1.0, 1.0)

    def to_saved(self) -> SavedModel:
        """Returns the generator as plain data, each part with its own config and weights."""
        config = {
            "grid_size": list(self.grid_size),
            "conditioning": self.conditioning.config(),
        }
        names = "transformer", "tokenizer", "condition_tokenizer"
        parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        saved = {name: part.to_saved() for name, part in parts.items() if part is not None}
        return SavedModel(self.kind, config, parts=saved)

    @classmethod
    def from_saved(cls, saved: SavedModel) -> Self:
        """Rebuilds a generator, in eval mode.

        Raises:
            UserError: if it is of another kind, or incomplete.
        """
        saved.require(cls.kind)
        missing = {"grid_size", "conditioning", "transformer"} - {*saved.config, *saved.parts}
        if missing:
            names = ", ".join(sorted(missing))
            raise UserError(f"the generator in {saved.source} is incomplete: it has no {names}.")
        tokenizer = saved.parts.get("tokenizer")
        parts = (
            None if tokenizer is None else VQGAN.from_saved(tokenizer),
            GPT.from_saved(saved.parts["transformer"]),
        )
        condition_tokenizer = load_condition_tokenizer(saved)
        with rebuilding(saved):
            return cls(
                *parts,
                conditioning_from_config(saved.config["conditioning"]),
                GRID_SIZE.validate_python(saved.config["grid_size"]),
                condition_tokenizer=condition_tokenizer,
            ).eval()

    def prepare_sampling(
        self, options: SamplingOptions, dtype: SamplingDtype, num_images: int
    ) -> SamplingOptions:
        """Settles precision and compilation for so many images, and logs them in a line.

        The weights are converted; the options come back with the choice. See
        `taming.generation.speed`.
        """
        tokenizer = self.require_tokenizer()
        use_dtype(self.transformer, tokenizer, dtype)
        options = decide_compilation(options, self.device, self.grid_size, num_images)
        weights = self.transformer.head.weight, tokenizer.last_layer
        first, second = (str(weight.dtype).removeprefix("torch.") for weight in weights)
        compiled = "compiled" if options.compile else "not compiled"
        name = device_name(self.device)
        log.info("%s: transformer in %s, %s; decoder in %s", name, first, compiled, second)
        return options

    def require_tokenizer(self) -> VQGAN:
        """Returns the tokenizer; raises a `UserError` that says how to get one if there is none."""
        if self.tokenizer is None:
            raise UserError(
                "this generator has no tokenizer, so it draws tokens but no images: save it with "
                "the VQGAN it was trained on, or import it once more with tokenizer=DIR."
            )
        return self.tokenizer


def check_keep_rows(keep_rows: int, height: int) -> None:
    """Raises a `UserError` unless so many rows of `height` leave something to generate."""
    if not 0 < keep_rows < height:
        raise UserError(
            f"keep_rows is {keep_rows}: an image is {height} rows of codes, so keep 1 to "
            f"{height - 1} of them."
        )


def load_model(path: str | Path) -> tuple[VQGAN, ImageGenerator | None]:
    """Loads the model at a path, see `find_model`: a tokenizer, and the generator that has it.

    Raises:
        MissingPathError: if the path does not exist.
        UserError: if there is no model, or a generator without its tokenizer.
    """
    saved = load_saved_model(path)
    if saved.kind != ImageGenerator.kind:
        return VQGAN.from_saved(saved), None
    generator = ImageGenerator.from_saved(saved)
    return generator.require_tokenizer(), generator


def load_condition_tokenizer(saved: SavedModel) -> Tokenizer | None:
    """Rebuilds a saved generator's tokenizer of condition images; None if it has none."""
    part = saved.parts.get("condition_tokenizer")
    if part is None:
        return None
    return (CellClasses if part.kind == CellClasses.kind else VQGAN).from_saved(part)
