"""The image generator: transformer, condition and tokenizer together."""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ParamSpec, Self, TypeVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from pydantic import TypeAdapter
from torch import Tensor

from taming.conditioning import Condition, Conditioning, conditioning_from_config
from taming.generation.conditional import ConditionalTransformer
from taming.generation.options import SamplingOptions
from taming.generation.sampler import TokenSampler, resolve
from taming.generation.speed import SamplingDtype, decide_compilation, use_dtype
from taming.runtime.contexts import evaluation_mode
from taming.runtime.dtypes import at_least_float32
from taming.runtime.errors import UserError
from taming.runtime.hardware import device_name
from taming.serialization import SavedModel, load_saved_model, rebuilding
from taming.tokenizer import VQGAN, CellClasses, Tokenizer, height_and_width
from taming.transformer import GPT
from taming.transformer.orders import to_tokens

__all__ = ["ImageGenerator", "check_keep_rows", "load_condition_tokenizer", "load_model"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("taming")

GRID_SIZE = TypeAdapter(tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]])
PIXELS_AT_ONCE = 2**19  # 8 images of 256×256; a feature map of 128 channels then has 256 MiB


def same_arguments(method: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Gives a function another one's signature, which `help()` and type checkers then show."""

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        setattr(function, "__signature__", inspect.signature(method))  # noqa: B010
        return function

    return decorate


class ImageGenerator(ConditionalTransformer):
    """Draws tokens with the transformer and decodes them into images with the tokenizer.

    Args:
        tokenizer: the VQGAN whose codes the tokens are. Without a tokenizer the generator draws
            tokens but no images.
        transformer: the GPT.
        conditioning: the kind of condition.
        grid_size: (height, width) of the code grid; a single number means square.
        condition_tokenizer: encodes condition images, for a model that takes them.

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
        super().__init__(transformer, conditioning, grid_size, condition_tokenizer)
        codebook_size = transformer.config.codebook_size
        if tokenizer is not None and tokenizer.codebook_size != codebook_size:
            raise UserError(
                f"the tokenizer has {tokenizer.codebook_size} codes and the transformer "
                f"{codebook_size}: they belong to different models."
            )
        self.tokenizer = tokenizer
        self._sampler = TokenSampler()

    @property
    def resolution(self) -> tuple[int, int]:
        """(height, width) of an image in pixels; the tokenizer may have trained on another size."""
        factor = self.require_tokenizer().downsample_factor
        return self.grid_size[0] * factor, self.grid_size[1] * factor

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
        """Draws the tokens of images, with the transformer in evaluation mode.

        Each image has its own random numbers, which depend only on the seed and the image's
        number. In float32 the batch an image is drawn in makes no difference; in bfloat16 it
        changes rounding.

        Args:
            num_images: b.
            condition: `(b,)` int64 class labels, class names, or one name for all; or `(b c H W)`
                condition images or their codes `(b h w)` int64. None: no condition.
            temperature: see `SamplingOptions`, as for all arguments up to `seed`.
            top_k: see `SamplingOptions`.
            top_p: see `SamplingOptions`.
            guidance_scale: the `scale` of a constant `Guidance`.
            greedy: see `SamplingOptions`.
            seed: see `SamplingOptions`.
            given_tokens: `(b m)` integers, fixed first tokens, which the result includes. In a
                model of any order, -1 marks a token to draw.
            options: all settings of sampling, in place of the six arguments from `temperature` to
                `seed`.
            progress: whether to show a progress bar.
            first_image: number of the first image, to draw a long series in several calls.

        Returns:
            `(b n)` int64 on the model's device, in the model's order; of a model of any order in
            raster order.

        Raises:
            UserError: if an argument is out of range or the model was not trained for it.
        """
        options = SamplingOptions.of(
            options, temperature=temperature, top_k=top_k, top_p=top_p,
            guidance_scale=guidance_scale, greedy=greedy, seed=seed,
        )  # fmt: skip
        return self._sampler.sample(
            self, options, num_images, condition, given_tokens,
            first_image=first_image, progress=progress,
        )  # fmt: skip

    def sample_rows(
        self,
        num_images: int,
        condition: Condition = None,
        given_tokens: Tensor | None = None,
        *,
        options: SamplingOptions,
    ) -> Iterator[Tensor]:
        """Draws the tokens that `sample_tokens` draws, in one batch, and yields each row of codes.

        Yields:
            `(b m)` int64 on the model's device: the tokens so far, as whole rows. The rows within
            `given_tokens` come first. A model of any order yields `(b n)`, with -1 for tokens that
            are still to draw, whenever it has drawn as many as a row has.
        """
        options, condition, given_tokens = resolve(
            self, options, num_images, condition, given_tokens
        )
        _, width = options.grid_size or self.grid_size
        num_given = 0 if self.any_order else given_tokens.shape[1] // width * width
        if num_given:
            yield given_tokens[:, :num_given]
        numbers, num_new = range(num_images), given_tokens.shape[1] % width
        tokens = given_tokens
        with evaluation_mode(self.transformer):
            draw = self._sampler.draw(self, condition, given_tokens, numbers, options)
            for tokens, count in draw:
                num_new += count // num_images
                if num_new >= width:
                    num_new = 0
                    yield tokens
        if num_new or tokens is given_tokens:
            yield tokens

    @same_arguments(sample_tokens)
    def sample(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draws images. The arguments are the arguments of `sample_tokens`.

        Returns:
            `(b c H W)` on the model's device, in [-1, 1]; with a tokenizer of label maps, logits of
            the classes.
        """
        self.require_tokenizer()
        options: SamplingOptions | None = kwargs.get("options")
        tokens = self.sample_tokens(*args, **kwargs)
        return self.decode(tokens, None if options is None else options.grid_size)

    def complete(
        self,
        images: Tensor,
        keep_rows: int,
        condition: Condition = None,
        *,
        progress: bool = False,
        first_image: int = 0,
        **settings: Any,
    ) -> Tensor:
        """Keeps the first rows of codes of images and generates the rest.

        Args:
            images: `(b c H W)` in [-1, 1]. Images larger than the trained size are completed
                through the sliding window.
            keep_rows: number of rows of codes to keep, at least 1 and less than all.
            condition: see `sample_tokens`.
            progress: see `sample_tokens`.
            first_image: see `sample_tokens`.
            **settings: `options`, or `temperature`, `top_k`, `top_p`, `guidance_scale`, `greedy`
                and `seed`; see `sample_tokens`.

        Returns:
            `(b c H W)`, with the kept rows as the tokenizer reconstructs them.
        """
        options = SamplingOptions.of(**settings)
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

    def inpaint(
        self,
        images: Tensor,
        mask: Tensor,
        condition: Condition = None,
        *,
        paste: bool = True,
        progress: bool = False,
        first_image: int = 0,
        **settings: Any,
    ) -> Tensor:
        """Paints a region of images and keeps the rest, with a model of any order.

        To let images grow, pad them and mask the border. Images larger than the trained size are
        painted through a sliding window.

        Args:
            images: `(b c H W)` in [-1, 1].
            mask: boolean `(b H W)`, or `(H W)` for all: True where to paint. A code is drawn if its
                cell has a masked pixel.
            condition: see `sample_tokens`.
            paste: whether to put the given pixels around the painted cells back, with a seam as
                wide as a cell. Otherwise the decoder makes all pixels.
            progress: see `sample_tokens`.
            first_image: see `sample_tokens`.
            **settings: `options`, or `temperature`, `top_k`, `top_p`, `guidance_scale`, `greedy`
                and `seed`; see `sample_tokens`.

        Returns:
            `(b c H W)` in [-1, 1]; with a tokenizer of label maps, logits of the classes.

        Raises:
            UserError: if the model has a fixed order, or the mask does not fit the images.
        """
        options = SamplingOptions.of(**settings)
        tokenizer = self.require_tokenizer()
        given_tokens = self.known_tokens(images, mask, batch_size=options.images_at_once)
        samples = self.sample(
            len(images),
            condition,
            given_tokens=given_tokens,
            options=replace(options, grid_size=tokenizer.grid_size_for(images.shape[2:])),
            progress=progress,
            first_image=first_image,
        )
        return self.paste(samples, images, mask) if paste and not tokenizer.label_maps else samples

    @torch.no_grad()
    def known_tokens(self, images: Tensor, mask: Tensor, *, batch_size: int = 64) -> Tensor:
        """Returns the tokens `(b n)` of images, with -1 where a cell has a masked pixel."""
        self.require_any_order()
        masked = self._masked_cells(images, mask)  # (b h w)
        encode = self.require_tokenizer().encode
        indices = torch.cat([encode(x.to(self.device)) for x in images.split(batch_size)])
        return to_tokens(indices.masked_fill(masked, -1))

    def require_any_order(self) -> None:
        """Raises a `UserError` unless the model draws cells in any order."""
        if not self.any_order:
            raise UserError(
                f"this model draws tokens in {self.transformer.config.order} order, so it can only "
                "complete an image below its first rows (keep_rows). To paint any region, train a "
                "transformer with order=random, or with order=annealed and "
                "training.annealing.final_share=0.5."
            )

    def paste(self, samples: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Puts the pixels of images around the painted cells into samples; see `inpaint`.

        The painted cells are the sample's. Outside of them the sample fades into the image, over
        the width of a cell.
        """
        width = self.require_tokenizer().downsample_factor // 2
        cells = self._masked_cells(images, mask)  # (b h w)
        painted = F.interpolate(cells[:, None].float(), images.shape[2:])  # (b 1 H W)
        size, padding = 2 * width + 1, width
        grown = F.max_pool2d(painted, size, stride=1, padding=padding)
        share = F.avg_pool2d(grown, size, stride=1, padding=padding, count_include_pad=False)
        return torch.lerp(images.to(samples), samples, share.to(samples))

    def _masked_cells(self, images: Tensor, mask: Tensor) -> Tensor:
        """Returns the cells with a masked pixel, boolean `(b h w)` on the model's device."""
        mask = mask.expand(len(images), -1, -1) if mask.ndim == 2 else mask
        if mask.dtype != torch.bool or mask.shape != (len(images), *images.shape[2:]):
            raise UserError(
                f"the mask is {mask.dtype} of shape {tuple(mask.shape)}. Give a boolean mask of "
                f"{images.shape[2]}×{images.shape[3]} pixels, one for all images or one for each."
            )
        factor = self.require_tokenizer().downsample_factor
        pixels = mask.to(self.device, torch.float32)[:, None]  # (b 1 H W)
        return F.max_pool2d(pixels, factor).squeeze(1) > 0

    @torch.no_grad()
    def first_tokens(self, images: Tensor, keep_rows: int) -> Tensor:
        """Returns the tokens `(b m)` of the first rows of images `(b c H W)` in [-1, 1]."""
        indices = self.require_tokenizer().encode(images.to(self.device))  # (b h w)
        check_keep_rows(keep_rows, indices.shape[1])
        if (order := self.transformer.config.order) not in ("raster", "any"):
            raise UserError(
                f"this model draws tokens in {order} order, so it cannot keep the first rows of an "
                "image. Train one with order=random or order=annealed to complete images."
            )
        return to_tokens(indices[:, :keep_rows])

    @torch.no_grad()
    def decode(self, tokens: Tensor, grid_size: int | Sequence[int] | None = None) -> Tensor:
        """Decodes tokens into images.

        A batch is as large as the decoder needs to be busy. A larger batch would only use more
        memory.

        Args:
            tokens: integers `(b n)`.
            grid_size: (height, width) in codes; None: the trained size.

        Returns:
            `(b c H W)` in [-1, 1]; with a tokenizer of label maps, logits of the classes.

        Raises:
            UserError: if there is no tokenizer, the tokens are not its codes, or the images are not
                finite.
        """
        tokenizer = self.require_tokenizer()
        height, width = self.grid_size if grid_size is None else height_and_width(grid_size)
        tokens = self.check_tokens(tokens, (height, width))
        if tokens.shape[1] < height * width:
            raise UserError(f"{height} × {width} codes are not {tokens.shape[1]} tokens.")
        pixels = height * width * tokenizer.downsample_factor**2
        batches = tokens.split(max(1, PIXELS_AT_ONCE // pixels))
        with evaluation_mode(tokenizer):
            decoded = [
                tokenizer.decode(self.to_indices(batch, (height, width))) for batch in batches
            ]
        images = torch.cat(decoded)
        if not images.isfinite().all():
            raise UserError(
                "the decoder's images are not finite numbers: the VQGAN's training diverged or its "
                "weights are damaged. Use an earlier checkpoint."
            )
        images = at_least_float32(images)
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
            UserError: if it is not a generator, or incomplete.
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
        """Decides precision and compilation for this number of images, and logs both.

        It converts the weights and returns the options with the decision. See
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
        """Returns the tokenizer; raises a `UserError` if it is missing."""
        if self.tokenizer is None:
            raise UserError(
                "this generator has no tokenizer, so it draws tokens but no images. Save it with "
                "the VQGAN it was trained on, or import it again with tokenizer=DIR."
            )
        return self.tokenizer


def check_keep_rows(keep_rows: int, height: int) -> None:
    """Raises a `UserError` unless `keep_rows` of `height` rows leave something to generate."""
    if not 0 < keep_rows < height:
        raise UserError(
            f"keep_rows is {keep_rows}. An image has {height} rows of codes: keep 1 to "
            f"{height - 1}."
        )


def load_model(path: str | Path) -> tuple[VQGAN, ImageGenerator | None]:
    """Loads the model at a path: a tokenizer, and the generator that contains it, if any.

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
    """Rebuilds a saved generator's tokenizer of condition images; None for other conditions."""
    part = saved.parts.get("condition_tokenizer")
    if part is None:
        return None
    return (CellClasses if part.kind == CellClasses.kind else VQGAN).from_saved(part)
