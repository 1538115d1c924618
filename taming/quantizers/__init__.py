"""Quantizers: one idea per file, all behind the interface in `interface.py`."""

from collections.abc import Mapping
from typing import Any

from taming.quantizers.finite_scalar import FiniteScalarQuantizer
from taming.quantizers.gumbel import GumbelQuantizer
from taming.quantizers.interface import Quantizer, QuantizerOutput, Size
from taming.quantizers.vector import VectorQuantizer
from taming.runtime.errors import UserError
from taming.serialization.arguments import construct, describe_error

__all__ = [
    "KINDS",
    "FiniteScalarQuantizer",
    "GumbelQuantizer",
    "Quantizer",
    "QuantizerOutput",
    "Size",
    "VectorQuantizer",
    "build_quantizer",
]

KINDS: dict[str, type[Quantizer]] = {
    "vector": VectorQuantizer,
    "gumbel": GumbelQuantizer,
    "finite_scalar": FiniteScalarQuantizer,
}


def build_quantizer(config: Mapping[str, Any]) -> Quantizer:
    """Builds a quantizer from a dictionary of its `kind` and its constructor's arguments.

    Raises:
        UserError: if the kind or an argument is unknown.
    """
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(
            f"the quantizer kind {kind!r} is unknown. Choose one of {', '.join(KINDS)}."
        )
    try:
        return construct(KINDS[kind], arguments)
    except ValueError as error:
        raise UserError(f"quantizer {kind!r}: {describe_error(error)}.") from error
