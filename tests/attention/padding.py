import torch
from torch import Tensor


def padding_mask(lengths: Tensor, num_keys: int) -> Tensor:
    """Hides what is behind the first `lengths[b]` keys, `(b 1 1 num_keys)`."""
    return (torch.arange(num_keys) < lengths[:, None])[:, None, None, :]
