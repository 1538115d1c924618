"""The image generator: tokenizer, transformer and conditioning together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from taming.conditioning import Conditioning, conditioning_from_config
from taming.errors import UserError
from taming.generation.decoding import (
    Choice,
    decode_tokens,
    greedy_choice,
    random_choice,
    random_numbers,
)
from taming.modes import evaluation_mode
from taming.sequence import to_indices
from taming.serialization import SavedModel, load_saved_model, save_model_directory
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["ImageGenerator"]


class ImageGenerator(nn.Module):
    """Draws tokens with the transformer and shows them as images with the tokenizer.

    Args:
        tokenizer: the VQGAN whose codes the tokens are; without one there are tokens, not images.
        transformer: the GPT.
        conditioning: what can be asked for.
        grid_size: (height, width) of the code grid; a single number means square.
        class_names: names of the classes, if the conditioning does not have them yet.

    Raises:
        UserError: if the parts do not fit each other.
    """

    def __init__(
        self,
        tokenizer: VQGAN | None,
        transformer: GPT,
        conditioning: Conditioning,
        grid_size: int | Sequence[int],
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        height, width = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        self.grid_size: tuple[int, int] = (height, width)
        self.tokenizer = tokenizer
        self.transformer = transformer
        if class_names is not None:
            conditioning = conditioning.with_class_names(class_names)
        self.conditioning = conditioning
        self._check_parts()

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.grid_size[0] * self.grid_size[1]

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
            tokens: `(b n)` int64, n at most `num_tokens`.
            condition: `(b,)` int64 class labels; None asks for nothing in particular.

        Returns:
            `(b n v)` on the model's device, with gradients where they are enabled.
        """
        self._check_tokens(tokens)
        prefix = self.conditioning.prefix(condition, len(tokens), self.device)
        return self.transformer.token_logits(prefix, tokens.to(self.device))

    def sample_tokens(
        self,
        num_images: int,
        condition: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        greedy: bool = False,
        seed: int | None = None,
        given_tokens: Tensor | None = None,
        *,
        batch_size: int = 64,
        first_image: int = 0,
        progress: bool = False,
    ) -> Tensor:
        """Draws the tokens of some images, in evaluation mode whatever mode the model is in.

        Every image has its own random numbers, which depend on the seed and its number alone:
        in which batch it is drawn makes no difference (float32; elsewhere up to rounding).

        Args:
            num_images: number of images.
            condition: `(num_images,)` int64 class labels; None asks for nothing in particular.
            temperature: more than 0; below 1 is more of the probable, above 1 less.
            top_k: draw among this many most probable tokens; None for all.
            top_p: draw among the most probable tokens that have this probability together.
            greedy: take the most probable token each time; the settings above have no effect.
            seed: not negative; None takes one from PyTorch's global random state.
            given_tokens: `(num_images m)` fixed first tokens, which the result includes.
            batch_size: images drawn at once, which bounds the memory.
            first_image: number of the first image, to draw a long series in several calls.
            progress: show a progress bar.

        Returns:
            `(num_images n)` int64 on the model's device.

        Raises:
            UserError: if an argument is out of range or not what the model was trained for.
        """
        if num_images < 1 or batch_size < 1:
            raise UserError(
                f"num_images is {num_images} and batch_size {batch_size}: both must be at least 1."
            )
        prefix = self.conditioning.prefix(condition, num_images, self.device)  # (num_images p)
        if given_tokens is None:
            given_tokens = torch.empty(num_images, 0, dtype=torch.int64)
        self._check_given_tokens(given_tokens, num_images)
        given_tokens = given_tokens.to(self.device, torch.int64)
        if seed is None:
            seed = int(torch.randint(2**62, ()))

        batches = []
        num_new = num_images * (self.num_tokens - given_tokens.shape[1])
        with _progress_bar(num_new, progress) as bar, evaluation_mode(self.transformer):
            for start in range(0, num_images, batch_size):
                end = min(start + batch_size, num_images)
                choose: Choice = greedy_choice
                if not greedy:
                    numbers = range(first_image + start, first_image + end)
                    uniforms = random_numbers(seed, numbers, self.num_tokens)  # (b n)
                    if self.device.type == "mps":
                        uniforms = uniforms.float()
                    choose = random_choice(uniforms.to(self.device), temperature, top_k, top_p)
                tokens = decode_tokens(
                    self.transformer,
                    prefix[start:end],
                    given_tokens[start:end],
                    self.num_tokens,
                    choose,
                    bar.update,
                )
                batches.append(tokens)
        return torch.cat(batches)

    def sample(
        self,
        num_images: int,
        condition: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        greedy: bool = False,
        seed: int | None = None,
        given_tokens: Tensor | None = None,
        *,
        batch_size: int = 64,
        first_image: int = 0,
        progress: bool = False,
    ) -> Tensor:
        """Draws images; the arguments are those of `sample_tokens`.

        Returns:
            `(num_images c H W)` in [-1, 1] on the model's device.
        """
        self._require_tokenizer()
        tokens = self.sample_tokens(
            num_images,
            condition,
            temperature,
            top_k,
            top_p,
            greedy,
            seed,
            given_tokens,
            batch_size=batch_size,
            first_image=first_image,
            progress=progress,
        )
        return torch.cat([self.decode(batch) for batch in tokens.split(batch_size)])

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """Shows tokens as images: `(b n)` to `(b c H W)` in [-1, 1]."""
        tokenizer = self._require_tokenizer()
        with evaluation_mode(tokenizer):
            images = tokenizer.decode(to_indices(tokens.to(self.device), self.grid_size))
        return images.clamp(-1.0, 1.0)

    def to_saved(self) -> SavedModel:
        """The generator as plain data, each part with its own config and weights."""
        config: dict[str, Any] = {
            "grid_size": list(self.grid_size),
            "conditioning": self.conditioning.config(),
        }
        parts = {"transformer": self.transformer.to_saved()}
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer.to_saved()
        return SavedModel("generator", config, parts=parts)

    @classmethod
    def from_saved(cls, saved: SavedModel, where: str = "the model") -> Self:
        """Rebuilds a generator, in eval mode.

        Args:
            saved: what `to_saved` made.
            where: how error messages name it.

        Raises:
            UserError: if it is of another kind, or incomplete.
        """
        saved.require("generator", where)
        if "transformer" not in saved.parts:
            raise UserError(f"the generator in {where} is incomplete: it has no transformer.")
        for key in ("grid_size", "conditioning"):
            if key not in saved.config:
                raise UserError(f"the config of the generator in {where} has no {key!r}.")
        tokenizer = None
        if "tokenizer" in saved.parts:
            tokenizer = VQGAN.from_saved(saved.parts["tokenizer"].require("vqgan", where))
        transformer = GPT.from_saved(saved.parts["transformer"], where)
        conditioning = conditioning_from_config(saved.config["conditioning"])
        return cls(tokenizer, transformer, conditioning, saved.config["grid_size"]).eval()

    def save_pretrained(self, directory: str | Path) -> Path:
        """Writes a generator directory: config.json, transformer/ and tokenizer/."""
        return save_model_directory(self.to_saved(), directory)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Loads a generator in eval mode.

        Args:
            path: a generator directory, the run directory or checkpoint of a transformer's
                training, or `"hf:owner/name"`.
        """
        return cls.from_saved(load_saved_model(path), where=str(path))

    def _require_tokenizer(self) -> VQGAN:
        if self.tokenizer is None:
            raise UserError(
                "this generator has no tokenizer, so it draws tokens but no images: save it with "
                "the VQGAN it was trained on, or use sample_tokens."
            )
        return self.tokenizer

    def _check_parts(self) -> None:
        transformer = self.transformer
        if transformer.num_prefix_ids != self.conditioning.num_prefix_ids:
            raise UserError(
                f"the transformer has {transformer.num_prefix_ids} prefix ids and the condition "
                f"{self.conditioning.num_prefix_ids}: they are not of the same model."
            )
        if self.tokenizer is not None and self.tokenizer.codebook_size != transformer.codebook_size:
            raise UserError(
                f"the tokenizer has {self.tokenizer.codebook_size} codes and the transformer "
                f"{transformer.codebook_size}: they are not of the same model."
            )
        # the last token is drawn and never read
        needed = self.conditioning.prefix_length + self.num_tokens - 1
        if needed > transformer.context_length:
            raise UserError(
                f"a grid of {self.grid_size[0]} × {self.grid_size[1]} codes needs a context of "
                f"{needed}, and the transformer's is {transformer.context_length}."
            )

    def _check_tokens(self, tokens: Tensor) -> None:
        codebook_size = self.transformer.codebook_size
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < codebook_size:
            raise UserError(
                f"tokens are {int(tokens.min())} to {int(tokens.max())}, and the codes of this "
                f"model 0 to {codebook_size - 1}: were they made by another tokenizer?"
            )

    def _check_given_tokens(self, given_tokens: Tensor, num_images: int) -> None:
        shape = tuple(given_tokens.shape)
        if len(shape) != 2 or shape[0] != num_images or shape[1] > self.num_tokens:
            raise UserError(
                f"given_tokens has the shape {shape}, and must have ({num_images}, m) with m at "
                f"most {self.num_tokens}, the tokens of an image."
            )
        self._check_tokens(given_tokens)


def _progress_bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, disable=not shown, desc="sampling", unit=" tokens", unit_scale=True)
