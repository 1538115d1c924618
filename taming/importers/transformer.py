"""From a foreign transformer's arguments and weights to a generator."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from taming.conditioning import Conditioning
from taming.errors import UserError
from taming.serialization import SavedModel
from taming.transformer import GPT

__all__ = ["build_gpt", "generator", "integer", "number"]


def integer(name: str, value: Any, least: int) -> int:
    """The value of an argument, if it is an integer of at least `least`.

    Raises:
        UserError: if it is not.
    """
    if not isinstance(value, int) or value < least:
        raise UserError(
            f"the config describes no model: {name} is {value!r}, and must be an integer from "
            f"{least}."
        )
    return value


def number(name: str, value: Any) -> float:
    """The value of an argument, if it is a finite number of at least 0.

    Raises:
        UserError: if it is not.
    """
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(
            f"the config describes no model: {name} is {value!r}, and must be a number from 0."
        )
    return value


def build_gpt(arguments: Mapping[str, Any]) -> GPT:
    """The GPT of these arguments, which a foreign configuration gave, as shapes without memory.

    Raises:
        UserError: if there is no such model.
    """
    try:
        with torch.device("meta"):
            return GPT(**arguments)
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(f"the config describes no model: {error}") from error


def generator(
    gpt: GPT,
    state: dict[str, torch.Tensor],
    conditioning: Conditioning,
    grid_size: tuple[int, int],
    parts: Mapping[str, SavedModel],
) -> SavedModel:
    """A generator as plain data.

    Args:
        gpt: the transformer's shape.
        state: its weights.
        conditioning: what can be asked for.
        grid_size: (height, width) of the code grid.
        parts: the tokenizer and what else there is beside the transformer.

    Raises:
        UserError: if the transformer's context is too short for the grid.
    """
    height, width = grid_size
    needed = conditioning.prefix_length + height * width - 1  # the last token is never an input
    if needed > gpt.context_length:
        raise UserError(
            f"the config's grid of {height} × {width} codes, with {conditioning.prefix_length} "
            f"in front, needs a block_size of {needed}, and it is {gpt.context_length}."
        )
    config = {"grid_size": [height, width], "conditioning": conditioning.config()}
    return SavedModel(
        "generator", config, parts={"transformer": SavedModel("gpt", gpt.config, state), **parts}
    )
