"""Pickles read as plain data: nothing they name is imported, called or constructed.

Python's `pickletools` takes a pickle apart into its opcodes, and a small interpreter of them builds
numbers, strings, plain containers and tensors; all else becomes a `Placeholder`.
"""

import pickletools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch

__all__ = ["InertUnpickler", "Placeholder", "Storage"]

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


@dataclass(frozen=True, eq=False)
class Placeholder:
    """Stands for an object or name of the other program; `name` is its dotted path. It is inert."""

    name: str


Storage = tuple[torch.Tensor, torch.dtype]  # its bytes, the type of its elements


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Any:
    """A tensor; torch refuses one that reaches beyond its storage."""
    if isinstance(storage, Placeholder):
        return storage
    data, dtype = storage
    return data.view(dtype).as_strided(size, stride, offset)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"bytes written as {encoding}")
    return text.encode("latin1")


# All that a file can have built: names it may call, and what is done instead.
BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda items=(): dict(items),
    "collections.defaultdict": lambda factory=None, items=(): dict(items),
    **{
        f"{module}.{kind.__name__}": kind
        for kind in (dict, list, tuple, set, frozenset)
        for module in ("builtins", "__builtin__")
    },
    "_codecs.encode": _encode,  # how old pickles write bytes
    "torch.Size": lambda items=(): tuple(items),
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
}

EMPTY: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "EMPTY_TUPLE": tuple,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class InertUnpickler:
    """Runs a pickle's opcodes on a stack that holds plain data, tensors and placeholders only.

    A name in the file is a string here and nothing more: what a call makes is looked up in
    `BUILDERS`, by the whole name, and is a placeholder if it is not there.

    Args:
        storage: called with what a persistent id says of a tensor's storage; returns its bytes and
            the type of its elements.
    """

    def __init__(self, storage: Callable[..., Storage]) -> None:
        self.storage = storage
        self.not_built: set[str] = set()

    def run(self, file: IO[bytes]) -> Any:
        """The value of the next pickle in `file`, which is read to its end and no further."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        for opcode, argument, _ in pickletools.genops(file):
            self._step(opcode.name, argument)
        return self.stack.pop()

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "STOP" | "PROTO" | "FRAME":
                pass
            case "INT" | "BININT" | "BININT1" | "BININT2" | "LONG" | "LONG1" | "LONG4":
                stack.append(argument)
            case "FLOAT" | "BINFLOAT" | "STRING" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "UNICODE" | "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(argument)
            case _ if opcode in EMPTY:
                stack.append(EMPTY[opcode]())
            # tuples, lists, dictionaries, sets
            case "MARK":
                self.marks.append(len(stack))
            case _ if opcode in TUPLES:
                stack.append(tuple(self._pop_last(TUPLES[opcode])))
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "LIST":
                stack.append(self._pop_to_mark())
            case "FROZENSET":
                stack.append(frozenset(self._pop_to_mark()))
            case "DICT":
                items = self._pop_to_mark()
                stack.append(_pairs(items))
            case "APPEND":
                self._add(self._pop_last(1))
            case "APPENDS" | "ADDITEMS":
                self._add(self._pop_to_mark())
            case "SETITEM":
                self._set(self._pop_last(2))
            case "SETITEMS":
                self._set(self._pop_to_mark())
            # the stack and the memo
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._pop_to_mark()
            case "DUP":
                stack.append(stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            # names, and what the file wants done with them
            case "GLOBAL":
                stack.append(self._name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(self._name(*self._pop_last(2)))
            case "REDUCE" | "NEWOBJ":
                stack.append(_call(*self._pop_last(2)))
            case "NEWOBJ_EX":
                name, arguments, _ = self._pop_last(3)
                stack.append(_call(name, arguments))
            case "INST":
                arguments = self._pop_to_mark()
                stack.append(_call(self._name(*argument.split(" ", 1)), arguments))
            case "OBJ":
                name, *arguments = self._pop_to_mark()
                stack.append(_call(name, arguments))
            case "BUILD":
                stack.pop()  # an object's state: dropped, whatever the object
            case "PERSID":
                stack.append(self._stored(argument))
            case "BINPERSID":
                stack.append(self._stored(stack.pop()))
            case _:
                raise ValueError(f"opcode {opcode}")

    def _pop_last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("a pickle that takes more than it has")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _pop_to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _add(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(items)
        elif not isinstance(target, Placeholder):
            raise TypeError("a pickle that appends to no list")

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_pairs(items))
        elif not isinstance(target, Placeholder):
            raise TypeError("a pickle that sets items of no dictionary")

    def _name(self, module: str, name: str) -> Any:
        dotted = f"{module}.{name}"
        if dotted in DTYPE_NAMES:
            return DTYPE_NAMES[dotted]
        if dotted not in BUILDERS and dotted not in STORAGES:
            self.not_built.add(dotted)
        return Placeholder(dotted)

    def _stored(self, identifier: Any) -> Any:
        """The storage a persistent id names, or a placeholder."""
        if isinstance(identifier, tuple) and identifier[0] == "storage":
            kind, *rest = identifier[1:]
            if isinstance(kind, Placeholder) and kind.name in STORAGES:
                return self.storage(STORAGES[kind.name], *rest)
        self.not_built.add("persistent id")
        return Placeholder("persistent id")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _call(called: Any, arguments: Iterable[Any]) -> Any:
    """What stands for the result of a call: only `BUILDERS` make something."""
    if not isinstance(called, Placeholder):
        raise TypeError("a pickle that calls what is no name")
    builder = BUILDERS.get(called.name)
    return called if builder is None else builder(*arguments)
