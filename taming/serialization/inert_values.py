"""What a pickle may have built, and of what: plain containers, bytes and tensors."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["BUILDERS", "DTYPE_NAMES", "STORAGES", "Placeholder", "Storage", "checked_key"]

DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
STORAGES = {
    f"{module}.{name}Storage": dtype
    for name, dtype in DTYPES.items()
    for module in ("torch", "torch.cuda")
}
DTYPE_NAMES = {str(dtype): dtype for dtype in DTYPES.values()}

MAX_DIMENSIONS = 64  # as in torch


@dataclass(frozen=True, eq=False)
class Placeholder:
    """Stands for an object or name of the other program; `name` is its dotted path. It is inert."""

    name: str


Storage = tuple[torch.Tensor, torch.dtype]  # its bytes, the type of its elements
Plain = str | int | float | bytes | torch.dtype | Placeholder | None  # what keys are made of


def checked_key(key: Any) -> Any:
    """A key or member as it is: a plain value or a flat tuple of them.

    Python hashes tuples of tuples by recursion, and deep ones crash it.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, Plain) for part in parts):
        raise TypeError("a key that is no plain value")
    return key


def _items(items: Any) -> Iterable[Any]:
    """What fills a container: another one, and no tensor, which may count many more items."""
    if not isinstance(items, list | tuple | dict | set | frozenset):
        raise TypeError("a container made of something else")
    return items


def _dict(items: Any = ()) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    return {checked_key(key): value for key, value in map(_items, _items(items))}


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
    """A tensor of no more elements than its storage; torch refuses one that reaches beyond it."""
    if isinstance(storage, Placeholder):
        return storage
    data, dtype = storage
    data = data.view(dtype)
    if len(size) > MAX_DIMENSIONS or not all(
        isinstance(n, int) for n in (*_items(size), *_items(stride), offset)
    ):
        raise TypeError("a tensor whose shape is none")
    if math.prod(size) > data.numel():
        raise ValueError("a tensor has more elements than its storage")
    return data.as_strided(size, stride, offset)


def _encode(text: str, encoding: str) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError("bytes written in an unknown way")
    return text.encode("latin1")


# All that a file can have built: names it may call, and what is done instead.
BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.defaultdict": lambda factory=None, items=(): _dict(items),
    **{
        f"{module}.{name}": builder
        for module in ("builtins", "__builtin__")
        for name, builder in {
            "dict": _dict,
            "list": lambda items=(): list(_items(items)),
            "tuple": lambda items=(): tuple(_items(items)),
            "set": lambda items=(): set(map(checked_key, _items(items))),
            "frozenset": lambda items=(): frozenset(map(checked_key, _items(items))),
        }.items()
    },
    "_codecs.encode": _encode,  # how old pickles write bytes
    "torch.Size": lambda items=(): tuple(_items(items)),
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
}
