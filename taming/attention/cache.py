"""Keys and values of the tokens already seen, so that decoding computes each of them once."""

import torch
from torch import Tensor

__all__ = ["KeyValueCache", "LayerCache"]


class LayerCache:
    """Keys and values of one attention layer, in memory set aside at the first call.

    Args:
        max_length: number of tokens there is room for.

    Attributes:
        context: keys and values of the context, which no token changes; None without one.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.context: tuple[Tensor, Tensor] | None = None

    def update(
        self, positions: Tensor, span: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Writes keys and values of n tokens.

        Args:
            positions: `(n,)` int64, less than `max_length`.
            span: number of positions to return.
            keys: `(b heads n d_k)`.
            values: `(b heads n d_v)`.

        Returns:
            keys and values of the first positions, `(b heads span d)`: views, to be read only.
        """
        if self.keys is None or self.values is None:  # zeros: a masked NaN would spoil a sum
            self.keys = keys.new_zeros(*keys.shape[:2], self.max_length, keys.shape[3])
            self.values = values.new_zeros(*values.shape[:2], self.max_length, values.shape[3])
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        return self.keys[:, :, :span], self.values[:, :, :span]

    def keep_context(self, keys: Tensor, values: Tensor) -> None:
        """Remembers the context's keys and values, `(b heads c d)`, in one place in memory."""
        if self.context is None:
            self.context = keys.clone(), values.clone()
        else:
            self.context[0].copy_(keys)
            self.context[1].copy_(values)


class KeyValueCache:
    """One `LayerCache` for each attention layer of a transformer.

    Attributes:
        span: number of positions that each layer shows. None: those written so far, which must
            follow one another. A number: always as many, so that a compiled or captured step is
            the same at every position; a mask then hides what is not written yet.
        length: number of tokens written while `span` was None: the position of the next one.
    """

    def __init__(self, num_layers: int, max_length: int) -> None:
        self.max_length = max_length
        self.layers = [LayerCache(max_length) for _ in range(num_layers)]
        self.span: int | None = None
        self.length = 0

    def clear(self) -> None:
        """Empties the cache; its memory stays where it is for another batch of the same shape."""
        self.span = None
        self.length = 0

    def advance(self, num_tokens: int) -> int:
        """Returns the span that each layer's `update` is to show, with so many more tokens."""
        if self.span is not None:
            return self.span
        self.length += num_tokens
        return self.length

    def mask(self, positions: Tensor) -> Tensor | None:
        """Returns `(n span)`, True where a query may attend; None if causal order says it."""
        if self.span is None:
            return None
        return torch.arange(self.span, device=positions.device) <= positions[:, None]
