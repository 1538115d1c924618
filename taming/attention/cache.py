"""A cache of keys and values: decoding computes them once for each token."""

import torch
from torch import Tensor

__all__ = ["CacheView", "KeyValueCache"]

KeysAndValues = tuple[Tensor, Tensor]  # (b heads n d_k), (b heads n d_v)


class KeyValueCache:
    """Keys and values of the decoded tokens and of the context, for each layer.

    The first call of the transformer allocates the memory. The next batches reuse it in place, as
    captured graphs require.

    Args:
        num_layers: number of attention layers.
        num_sequences: number of sequences it has room for.
        max_length: number of positions it has room for.
    """

    def __init__(self, num_layers: int, num_sequences: int, max_length: int) -> None:
        self.num_sequences = num_sequences
        self.max_length = max_length
        self.tokens: list[KeysAndValues | None] = [None] * num_layers
        self.context: list[KeysAndValues | None] = [None] * num_layers

    def allocate(self, keys: Tensor, values: Tensor, length: int) -> KeysAndValues:
        """Returns zeroed memory, because a NaN would spoil sums despite the mask."""
        shape = self.num_sequences, keys.shape[1], length
        return keys.new_zeros(*shape, keys.shape[3]), values.new_zeros(*shape, values.shape[3])


class CacheView:
    """The part of a cache that one call of the transformer writes and reads.

    Args:
        cache: holds the keys and values of all earlier positions.
        positions: `(n,)` int64, the positions of the call's tokens.
        visible: number of positions to read, up to the last of `positions`. Or `(s,)` int64, 0 to
            s - 1: a compiled step always reads s positions, and a mask hides the later ones.
        start: the first sequence that the call decodes.
        stop: the sequence after the last one; None for all from `start` on.
        num_queries: number of last positions that do not see each other, but all before them. They
            are copies of one token that each predict another cell. The next call overwrites all
            but the first.

    Attributes:
        mask: boolean `(n s)`, True where a token may attend; None where causal order suffices.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        positions: Tensor,
        visible: int | Tensor,
        start: int | None = None,
        stop: int | None = None,
        *,
        num_queries: int = 1,
    ) -> None:
        self.cache = cache
        self.positions = positions
        self.start, self.stop = start, stop  # no slice: torch.compile 2.11 refuses one
        if isinstance(visible, int):
            assert positions.device.type != "cpu" or positions[-1] == visible - 1
            self.num_visible, self.mask = visible, None
            if num_queries == 1:
                return
            visible = torch.arange(visible, device=positions.device)
        self.num_visible = visible.shape[0]
        first_query = positions[-num_queries]
        ends = positions.minimum(first_query)[:, None]  # (n 1)
        self.mask = (visible < ends) | (visible == positions[:, None])

    def update(self, layer: int, keys: Tensor, values: Tensor) -> KeysAndValues:
        """Writes keys `(b heads n d_k)` and values `(b heads n d_v)` of the call's tokens.

        Returns:
            views of the visible keys and values, `(b heads s d_k)` and `(b heads s d_v)`.
        """
        if self.cache.tokens[layer] is None:
            self.cache.tokens[layer] = self.cache.allocate(keys, values, self.cache.max_length)
        all_keys, all_values = self._rows(self.cache.tokens[layer])
        all_keys.index_copy_(2, self.positions, keys)
        all_values.index_copy_(2, self.positions, values)
        return all_keys[:, :, : self.num_visible], all_values[:, :, : self.num_visible]

    def write_context(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values of the context, `(b heads c d_k)` and `(b heads c d_v)`."""
        if self.cache.context[layer] is None:
            self.cache.context[layer] = self.cache.allocate(keys, values, keys.shape[2])
        all_keys, all_values = self._rows(self.cache.context[layer])
        all_keys.copy_(keys)
        all_values.copy_(values)

    def context(self, layer: int) -> KeysAndValues:
        """Returns the keys and values that `write_context` wrote."""
        return self._rows(self.cache.context[layer])

    def _rows(self, memory: KeysAndValues | None) -> KeysAndValues:
        assert memory is not None
        if self.start is None and self.stop in (None, self.cache.num_sequences):
            return memory  # in a small model, even a slice takes a noticeable share of a step
        keys, values = memory
        return keys[self.start : self.stop], values[self.start : self.stop]
