"""From a generator's config.json to its conditioning."""

from collections.abc import Callable
from typing import Any

from taming.conditioning.base import Conditioning
from taming.conditioning.class_label import ClassLabel
from taming.conditioning.image import ImageCondition
from taming.conditioning.unconditional import Unconditional
from taming.errors import UserError

__all__ = ["conditioning_from_config"]

KINDS: dict[str, Callable[..., Conditioning]] = {
    Unconditional.kind: Unconditional,
    ClassLabel.kind: ClassLabel,
    ImageCondition.kind: ImageCondition,
}


def conditioning_from_config(config: dict[str, Any]) -> Conditioning:
    """Rebuilds what `config()` described.

    Raises:
        UserError: if its kind is not known or its settings are not of that kind.
    """
    settings = dict(config)
    kind = settings.pop("kind", None)
    if kind not in KINDS:
        raise UserError(
            f"conditioning of kind {kind!r} is not known; there are {', '.join(KINDS)}."
        )
    try:
        return KINDS[kind](**settings)
    except TypeError as error:
        raise UserError(f"the config of the conditioning {kind!r} is wrong: {error}.") from error
