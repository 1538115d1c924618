"""Keys and values of the tokens already seen, so that decoding computes each of them once."""

import torch
from torch import Tensor

__all__ = ["KeyValueCache", "LayerCache"]


class LayerCache:
    """Keys and values of one attention layer, in memory set aside once.

    Args:
        max_length: number of tokens there is room for.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
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
        if start == 0:
            self._keys = keys.new_empty(*keys.shape[:2], self.max_length, keys.shape[3])
            self._values = values.new_empty(*values.shape[:2], self.max_length, values.shape[3])
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class KeyValueCache:
    """One `LayerCache` for each attention layer of a transformer."""

    def __init__(self, num_layers: int, max_length: int) -> None:
        self.layers = [LayerCache(max_length) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of tokens in the cache: the position of the next one."""
        return self.layers[0].length
