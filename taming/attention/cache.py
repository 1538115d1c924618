"""Keys and values of the tokens already seen, so that decoding computes each of them once."""

import torch
from torch import Tensor

__all__ = ["KeyValueCache", "LayerCache"]


class LayerCache:
    """Keys and values of one attention layer, in memory set aside once.

    Args:
        max_length: number of tokens there is room for.

    Attributes:
        length: number of tokens appended so far.
        span: length of what `write` returns: how much of the memory is looked at.
        context: keys and values of the context, which no token changes; None without one.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.span = max_length
        self.context: tuple[Tensor, Tensor] | None = None
        self._keys = torch.empty(0)
        self._values = torch.empty(0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of n new tokens behind those already there.

        Args:
            keys: `(b heads n d_k)`. The first call sets batch size, widths, dtype and device.
            values: `(b heads n d_v)`.

        Returns:
            keys and values of all tokens so far, `(b heads length d)`: views, to be read only.

        Raises:
            ValueError: if there is no room for them.
        """
        start, end = self.length, self.length + keys.shape[2]
        if end > self.max_length:
            raise ValueError(f"the cache has room for {self.max_length} tokens, not for {end}.")
        shape = (*keys.shape[:2], self.max_length, keys.shape[3])
        if start == 0 and (self._keys.shape != shape or self._keys.dtype != keys.dtype):
            # zeros: `write` shows unwritten places too, and a masked NaN would still spoil a sum
            self._keys = keys.new_zeros(shape)
            self._values = values.new_zeros(*values.shape[:2], self.max_length, values.shape[3])
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def write(self, keys: Tensor, values: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Writes one token's keys and values at a place: the same operations whatever the place.

        A compiled or captured step can be repeated only because nothing in it depends on `length`,
        which stays as it is.

        Args:
            keys: `(b heads 1 d_k)`.
            values: `(b heads 1 d_v)`.
            place: `(1,)` int64.

        Returns:
            keys and values `(b heads span d)`, unwritten ones included.
        """
        self._keys.index_copy_(2, place, keys)
        self._values.index_copy_(2, place, values)
        return self._keys[:, :, : self.span], self._values[:, :, : self.span]

    def keep_context(self, keys: Tensor, values: Tensor) -> None:
        """Remembers the context's keys and values, `(b heads c d)`; of one shape at one place."""
        if self.context is None or self.context[0].shape != keys.shape:
            self.context = keys.clone(), values.clone()
        else:
            self.context[0].copy_(keys)
            self.context[1].copy_(values)


class KeyValueCache:
    """One `LayerCache` for each attention layer of a transformer."""

    def __init__(self, num_layers: int, max_length: int) -> None:
        self.max_length = max_length
        self.layers = [LayerCache(max_length) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of tokens in the cache: the position of the next one."""
        return self.layers[0].length

    def clear(self) -> None:
        """Empties the cache; its memory stays where it is for a batch of the same shape."""
        for layer in self.layers:
            layer.length = 0

    @property
    def span(self) -> int:
        """How many places `LayerCache.write` shows."""
        return self.layers[0].span

    @span.setter
    def span(self, span: int) -> None:
        for layer in self.layers:
            layer.span = span
