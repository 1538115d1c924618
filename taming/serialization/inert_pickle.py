"""Pickles read as plain data: nothing they name is imported, called or constructed.

Python's `pickletools` takes a pickle apart into its opcodes, and a small interpreter of them builds
numbers, strings, plain containers and tensors; all else becomes a `Placeholder`.
"""

import pickletools
from collections.abc import Callable
from typing import IO, Any

from taming.serialization.inert_values import (
    BUILDERS,
    DTYPE_NAMES,
    STORAGES,
    Placeholder,
    Storage,
    checked_key,
)

__all__ = ["InertUnpickler"]

MAX_NAME = 500  # characters of a module or of a name in it
Sized = str | list | tuple | dict | set | frozenset  # what a call may copy
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
        storage: called with what a persistent id says of a tensor's storage: the type of its
            elements, its key, their number, and in old files a view; returns its bytes and the type
            of its elements.
    """

    def __init__(self, storage: Callable[..., Storage]) -> None:
        self.storage = storage
        self.not_built: set[str] = set()

    def run(self, file: IO[bytes]) -> Any:
        """The value of the next pickle in `file`, which is read to its end and no further."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0  # items and characters that builders were given
        for opcode, argument, position in pickletools.genops(file):
            self.position = position or 0
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
                stack.append(frozenset(map(checked_key, self._pop_to_mark())))
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
                stack.append(self._call(*self._pop_last(2)))
            case "NEWOBJ_EX":
                name, arguments, _ = self._pop_last(3)
                stack.append(self._call(name, arguments))
            case "INST":
                arguments = self._pop_to_mark()
                stack.append(self._call(self._name(*argument.split(" ", 1)), arguments))
            case "OBJ":
                name, *arguments = self._pop_to_mark()
                stack.append(self._call(name, arguments))
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
            target.update(map(checked_key, items))
        elif not isinstance(target, Placeholder):
            raise TypeError("a pickle that appends to no list")

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_pairs(items))
        elif not isinstance(target, Placeholder):
            raise TypeError("a pickle that sets items of no dictionary")

    def _name(self, module: Any, name: Any) -> Any:
        if not all(isinstance(part, str) and len(part) <= MAX_NAME for part in (module, name)):
            raise TypeError("a name that is none")
        dotted = f"{module}.{name}"
        if dotted in DTYPE_NAMES:
            return DTYPE_NAMES[dotted]
        if dotted not in BUILDERS and dotted not in STORAGES:
            self.not_built.add(dotted)
        return Placeholder(dotted)

    def _stored(self, identifier: Any) -> Any:
        """The storage a persistent id names, or a placeholder."""
        if isinstance(identifier, tuple) and identifier[0] == "storage":
            _, kind, key, _, num_elements, *view = identifier
            if not isinstance(key, str) or not isinstance(num_elements, int):
                raise TypeError("a storage without name or size")
            if isinstance(kind, Placeholder) and kind.name in STORAGES:
                return self.storage(STORAGES[kind.name], key, num_elements, *view)
        self.not_built.add("persistent id")
        return Placeholder("persistent id")

    def _call(self, called: Any, arguments: Any) -> Any:
        """What stands for the result of a call: only `BUILDERS` make something.

        Arguments are built for one call. A file that has large ones copied by many small calls is
        recognised by their sum, which exceeds all of the file up to here.
        """
        if not isinstance(called, Placeholder):
            raise TypeError("a pickle that calls what is no name")
        builder = BUILDERS.get(called.name)
        if builder is None:
            return called
        if not isinstance(arguments, list | tuple):
            raise TypeError("a pickle that calls with no arguments")
        self.copied += sum(len(argument) for argument in arguments if isinstance(argument, Sized))
        if self.copied > self.position:
            raise ValueError("a pickle that copies more than it holds")
        return builder(*arguments)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(checked_key, items[::2]), items[1::2], strict=True))
