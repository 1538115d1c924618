"""What users get wrong about a generator's parts, and about what they want of it."""

from collections.abc import Sequence

from torch import Tensor

from taming.conditioning import ClassLabel, Conditioning, Tokenizer
from taming.errors import UserError
from taming.generation.options import Guidance
from taming.transformer import GPT

__all__ = ["as_condition", "check_guidance", "check_keep_rows", "check_parts", "check_tokens"]


def check_parts(
    transformer: GPT,
    conditioning: Conditioning,
    grid_size: tuple[int, int],
    tokenizer: Tokenizer | None,
    condition_tokenizer: Tokenizer | None,
) -> None:
    """Raises a `UserError` unless the parts belong to one generator with this grid."""
    config = transformer.config
    needed = {"num_context_ids": 0, **conditioning.transformer_config(grid_size)}
    length = needed.pop("context_length")  # it can be longer
    for name in (*needed, "prefix_grid_size", "context_grid_size"):
        found = getattr(config, name)
        if found not in (None, needed.get(name)):  # None: it does without
            raise UserError(
                f"the transformer has {name}={found}, and condition and grid need "
                f"{needed.get(name)}: they are not of the same model."
            )
    if length > config.context_length:
        raise UserError(
            f"a grid of {grid_size[0]} × {grid_size[1]} codes needs a context length of {length}, "
            f"and the transformer's is {config.context_length}."
        )
    for name, part, count in (
        ("transformer", tokenizer, config.codebook_size),
        ("condition", condition_tokenizer, getattr(conditioning, "num_codes", None)),
    ):
        if part is not None and part.codebook_size != count:
            raise UserError(
                f"the tokenizer has {part.codebook_size} codes and the {name} {count}: they are "
                "not of the same model."
            )


def check_tokens(tokens: Tensor, codebook_size: int, most: int) -> Tensor:
    """Returns tokens `(b n)`, n at most `most`, as int64, or raises a `UserError`."""
    numbers = not tokens.numel() or not tokens.is_floating_point()
    if tokens.ndim != 2 or tokens.shape[1] > most or not numbers:
        raise UserError(
            f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}, and must be whole numbers "
            f"(b, n) with n at most {most}, the tokens of an image."
        )
    tokens = tokens.long()
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < codebook_size:
        raise UserError(
            f"tokens are {int(tokens.min())} to {int(tokens.max())}, and the codes of this "
            f"model 0 to {codebook_size - 1}: were they made by another tokenizer?"
        )
    return tokens


def as_condition(
    condition: Tensor | str | Sequence[str] | None, conditioning: Conditioning, num_images: int
) -> Tensor | None:
    """Returns the condition of so many images as a tensor: class names as labels.

    Raises:
        UserError: if it is not a condition of this model, or not one for each image.
    """
    if condition is not None and not isinstance(condition, Tensor):
        names = [condition] * num_images if isinstance(condition, str) else condition
        if not isinstance(conditioning, ClassLabel) or not isinstance(names, list | tuple):
            raise UserError(
                f"condition is {condition!r} and must be a tensor, or class names where the model "
                "was trained on classes."
            )
        condition = conditioning.labels(names)
    conditioning.check(condition, num_images)
    return condition


def check_keep_rows(keep_rows: int, height: int, name: str = "keep_rows") -> None:
    """Raises a `UserError` unless so many rows of `height` leave something to generate."""
    if not 0 < keep_rows < height:
        raise UserError(
            f"{name} is {keep_rows}: an image is {height} rows of codes, so keep 1 to "
            f"{height - 1} of them."
        )


def check_guidance(guidance: Guidance, conditioning: Conditioning, *, has_condition: bool) -> None:
    """Raises a `UserError` if there is nothing to strengthen, or the model cannot do without."""
    if conditioning.num_classes is None and not conditioning.takes_images:
        problem = "this model was trained without conditions: leave guidance out"
    elif not has_condition:
        problem = "there is none: give one, or leave guidance out"
    elif not conditioning.can_do_without:
        problem = "this model was trained without condition_dropout, which guidance needs"
    else:
        return
    if not guidance.is_off:
        raise UserError(f"guidance_scale={guidance.scale} strengthens a condition, and {problem}.")
