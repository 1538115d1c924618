"""What can be wrong with a generator's parts, and with what it is asked for."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from taming.conditioning import CellClasses, Conditioning
from taming.errors import UserError
from taming.generation.choice import random_numbers
from taming.generation.filtering import filter_logits
from taming.generation.guidance import Guidance
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = [
    "check_choice",
    "check_condition",
    "check_first_image",
    "check_given_tokens",
    "check_grid_size",
    "check_guidance",
    "check_keep_rows",
    "check_parts",
    "check_tensor",
    "check_tokens",
]


def check_parts(
    transformer: GPT,
    conditioning: Conditioning,
    grid_size: tuple[int, int],
    tokenizer: VQGAN | None,
    condition_tokenizer: VQGAN | CellClasses | None,
) -> None:
    """Raises a `UserError` unless the parts are those of one generator of this grid."""
    needed = {"num_context_ids": 0, **conditioning.transformer_config(grid_size)}
    del needed["context_length"]  # it can be longer, see below
    for name in (*needed, "prefix_grid_size", "context_grid_size"):
        found = transformer.config[name]
        if found not in (None, needed.get(name)):  # None: it does without
            raise UserError(
                f"the transformer has {name}={found}, and condition and grid need "
                f"{needed.get(name)}: they are not of the same model."
            )
    for name, part, num_codes in (
        ("transformer", tokenizer, transformer.codebook_size),
        ("condition", condition_tokenizer, getattr(conditioning, "num_codes", None)),
    ):
        if part is not None and part.codebook_size != num_codes:
            raise UserError(
                f"the tokenizer has {part.codebook_size} codes and the {name} {num_codes}: they "
                "are not of the same model."
            )
    height, width = grid_size
    # the last token is drawn and never read
    length = conditioning.prefix_length + height * width - 1
    if length > transformer.context_length:
        raise UserError(
            f"a grid of {height} × {width} codes needs a context length of {length}, and the "
            f"transformer's is {transformer.context_length}."
        )


def check_tensor(value: object, name: str) -> None:
    """Raises a `UserError` unless what is given as `name` is a tensor."""
    if not isinstance(value, Tensor):
        raise UserError(f"{name} is {value!r} and must be a tensor: torch.tensor(…).")


def check_grid_size(grid_size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width), one number being both; raises a `UserError` for anything else."""
    sides = tuple(grid_size) if isinstance(grid_size, Sequence) else (grid_size, grid_size)
    whole = all(isinstance(side, int | np.integer) and side is not True for side in sides)
    if len(sides) != 2 or not whole or min(sides) < 1:
        raise UserError(
            f"grid_size is {grid_size} and must be (height, width) in codes, or one whole number "
            "for a square."
        )
    return int(sides[0]), int(sides[1])


def check_first_image(first_image: int) -> None:
    """Raises a `UserError` for the number of an image before the first of a series."""
    if first_image < 0:
        raise UserError(f"first_image is {first_image} and must not be negative.")


def check_tokens(tokens: Tensor, codebook_size: int) -> Tensor:
    """Tokens of any shape as int64; raises a `UserError` unless they are codes of the model."""
    check_tensor(tokens, "tokens")
    if tokens.numel() and tokens.is_floating_point():
        raise UserError(f"tokens are whole numbers, and these are {tokens.dtype}: give int64.")
    tokens = tokens.to(torch.int64)
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < codebook_size:
        raise UserError(
            f"tokens are {int(tokens.min())} to {int(tokens.max())}, and the codes of this "
            f"model 0 to {codebook_size - 1}: were they made by another tokenizer?"
        )
    return tokens


def check_given_tokens(
    given_tokens: Tensor, num_images: int, num_tokens: int, codebook_size: int
) -> Tensor:
    """The first tokens of so many images of so many tokens, as int64.

    Raises:
        UserError: if they are not, or no codes of the model.
    """
    check_tensor(given_tokens, "given_tokens")
    shape = tuple(given_tokens.shape)
    if len(shape) != 2 or shape[0] != num_images or shape[1] > num_tokens:
        raise UserError(
            f"given_tokens has the shape {shape}, and must have ({num_images}, m) with m at "
            f"most {num_tokens}, the tokens of an image."
        )
    return check_tokens(given_tokens, codebook_size)


def check_keep_rows(keep_rows: int, height: int, name: str = "keep_rows") -> None:
    """Raises a `UserError` unless so many rows of `height` leave something to generate."""
    if not 0 < keep_rows < height:
        raise UserError(
            f"{name} is {keep_rows}: an image is {height} rows of codes, so keep 1 to "
            f"{height - 1} of them."
        )


def check_condition(condition: Tensor | None, conditioning: Conditioning, num_images: int) -> None:
    """Raises a `UserError` unless so many images can be asked for by this condition.

    Of condition images the shape is looked at, not the codes, lest all of them be encoded;
    `prompt` looks at values on the CPU only.
    """
    if condition is not None:
        check_tensor(condition, "condition")
    if condition is None or not conditioning.takes_images:
        conditioning.prompt(None if condition is None else condition.cpu(), num_images)
    elif len(condition) != num_images or condition.ndim != 3 + condition.is_floating_point():
        raise UserError(
            f"the condition is a {condition.dtype} tensor of shape {tuple(condition.shape)}, "
            f"where {num_images} condition images, float ({num_images}, c, H, W), are needed."
        )
    elif not condition.is_floating_point():
        conditioning.check_values(condition)


def check_choice(
    temperature: float, top_k: int | None, top_p: float | None, *, greedy: bool, seed: int | None
) -> None:
    """Raises a `UserError` if tokens cannot be chosen so; greedily they can always be."""
    if not greedy:
        filter_logits(torch.zeros(1, 2), temperature, top_k, top_p)
        random_numbers(seed or 0, [0], 1)


def check_guidance(guidance: Guidance, conditioning: Conditioning, *, asked: bool) -> None:
    """Raises a `UserError` if there is nothing to strengthen, or the model cannot do without.

    Args:
        guidance: may be off.
        conditioning: of the model.
        asked: whether there is a condition.
    """
    if guidance.is_off:
        return
    if conditioning.num_classes is None and not conditioning.takes_images:
        raise UserError(
            f"guidance_scale={guidance.scale} strengthens a condition, and this model was trained "
            "without conditions: leave guidance out."
        )
    if not asked:
        raise UserError(
            f"guidance_scale={guidance.scale} strengthens a condition, and there is none: give "
            "one, or leave guidance out."
        )
    if not conditioning.can_do_without:
        raise UserError(
            f"guidance_scale={guidance.scale} needs a model that was trained to do without its "
            "condition some of the time: train with condition_dropout=0.1, or leave guidance "
            "out."
        )
