"""Keys and values of the tokens already seen, so that decoding computes each of them once."""

from torch import Tensor

__all__ = ["KeyValueCache", "LayerCache"]


class LayerCache:
    """Keys and values of one attention layer, in memory set aside at the first call.

    Args:
        max_length: number of tokens there is room for.
        num_sequences: number of sequences there is room for.

    Attributes:
        rows: the sequences that are decoded now; None: all of them.
    """

    def __init__(self, max_length: int, num_sequences: int) -> None:
        self.max_length = max_length
        self.num_sequences = num_sequences
        self.rows: slice | None = None
        self._keys_and_values: tuple[Tensor, Tensor] | None = None
        self._context: tuple[Tensor, Tensor] | None = None

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
        if self._keys_and_values is None:
            self._keys_and_values = self._memory(keys, values, self.max_length)
        all_keys, all_values = self._decoded(self._keys_and_values)
        all_keys.index_copy_(2, positions, keys)
        all_values.index_copy_(2, positions, values)
        return all_keys[:, :, :span], all_values[:, :, :span]

    def keep_context(self, keys: Tensor, values: Tensor) -> None:
        """Remembers the context's keys and values, `(b heads c d)`, in one place in memory."""
        if self._context is None:
            self._context = self._memory(keys, values, keys.shape[2])
        for kept, new in zip(self._decoded(self._context), (keys, values), strict=True):
            kept.copy_(new)

    @property
    def context(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the context, which no token changes; None without one."""
        return None if self._context is None else self._decoded(self._context)

    def _memory(self, keys: Tensor, values: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Returns zeros, for a masked NaN would spoil a sum, `(num_sequences heads length d)`."""
        shape = self.num_sequences, keys.shape[1], length
        return keys.new_zeros(*shape, keys.shape[3]), values.new_zeros(*shape, values.shape[3])

    def _decoded(self, memory: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the part of the sequences that are decoded now."""
        return memory if self.rows is None else (memory[0][self.rows], memory[1][self.rows])


class KeyValueCache:
    """One `LayerCache` for each attention layer of a transformer.

    Args:
        num_layers: number of layers.
        max_length: number of tokens there is room for.
        num_sequences: see `LayerCache`.

    Attributes:
        shown: the positions `(span,)` that each layer shows, from 0 on. None: those written so far,
            which must follow one another. Positions: always these, so that a compiled or captured
            step is the same at every position; a mask then hides what is not written yet.
        length: number of tokens written while `shown` was None: the position of the next one.
    """

    def __init__(self, num_layers: int, max_length: int, num_sequences: int) -> None:
        self.layers = [LayerCache(max_length, num_sequences) for _ in range(num_layers)]
        self.shown: Tensor | None = None
        self.length = 0

    def clear(self) -> None:
        """Empties the cache; its memory stays where it is for another batch of the same shape."""
        self.shown = None
        self.length = 0

    def decode_rows(self, rows: slice | None) -> None:
        """Lets the next calls be of these sequences; None: of all."""
        for layer in self.layers:
            layer.rows = rows

    def advance(self, num_tokens: int) -> int:
        """Returns the span that each layer's `update` is to show, with so many more tokens."""
        if self.shown is not None:
            return self.shown.shape[0]
        self.length += num_tokens
        return self.length

    def mask(self, positions: Tensor) -> Tensor | None:
        """Returns `(n span)`, True where a query may attend; None if causal order says it."""
        return None if self.shown is None else self.shown <= positions[:, None]
