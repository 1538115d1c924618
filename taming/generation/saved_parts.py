"""What is in a saved generator."""

from taming.conditioning import CellClasses
from taming.errors import UserError
from taming.serialization import SavedModel
from taming.vqgan import VQGAN

__all__ = ["check_saved", "load_condition_tokenizer"]

CONDITION_TOKENIZERS: dict[str, type[VQGAN | CellClasses]] = {
    "vqgan": VQGAN,
    "cell_classes": CellClasses,
}


def check_saved(saved: SavedModel) -> None:
    """Raises a `UserError` if it is no generator, or an incomplete one."""
    saved.require("generator")
    if "transformer" not in saved.parts:
        raise UserError(f"the generator in {saved.source} is incomplete: it has no transformer.")
    for key in ("grid_size", "conditioning"):
        if key not in saved.config:
            raise UserError(f"the config of the generator in {saved.source} has no {key!r}.")


def load_condition_tokenizer(saved: SavedModel) -> VQGAN | CellClasses | None:
    """A generator's tokenizer of condition images, in eval mode; None if it has none."""
    part = saved.parts.get("condition_tokenizer")
    if part is None:
        return None
    if part.kind not in CONDITION_TOKENIZERS:
        raise UserError(
            f"the condition tokenizer is a {part.kind}, and there are "
            f"{', '.join(CONDITION_TOKENIZERS)}."
        )
    return CONDITION_TOKENIZERS[part.kind].from_saved(part)
