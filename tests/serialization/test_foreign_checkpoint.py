"""Checkpoints of other programs: their weights are read, and no code in them runs."""

import collections
import functools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from taming.runtime.errors import MissingPathError, UserError
from taming.serialization import read_foreign_checkpoint
from taming.serialization.foreign import Placeholder, printable_name, printable_names

WEIGHT = torch.arange(6.0).reshape(2, 3)
HERE = __name__


class WritesWhenMade:
    def __new__(cls, path: str) -> "WritesWhenMade":
        Path(path).touch()
        return super().__new__(cls)


class WritesWhenRestored:
    def __setstate__(self, path: str) -> None:
        Path(path).touch()


class Callback:
    def __init__(self) -> None:
        self.best = torch.ones(1)


class Settings(dict[str, Any]):
    """Pickled as an object that is constructed, then filled, like Lightning's `AttributeDict`."""


def string(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def called(name: str, *arguments: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n(".encode() + b"".join(map(string, arguments)) + b"tR"


def write(path: Path, opcodes: bytes) -> Path:
    """Writes a checkpoint of a weight and the object that the opcodes build."""
    torch.save({"weight": WEIGHT, "evil": None}, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (pickled,) = (name for name in files if name.endswith("/data.pkl"))
    head, _, tail = files[pickled].rpartition(b"N")
    files[pickled] = head + opcodes + tail
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


# by attack: opcodes that create the file `proof`, and whether the rest of the checkpoint loads
ATTACKS: dict[str, tuple[Callable[[str], bytes], bool]] = {
    "os.system": (lambda proof: called("os.system", f"touch {proof}"), False),
    "behind torch": (lambda proof: called("torch.serialization.os.system", f"touch {proof}"), True),
    "eval": (lambda proof: called("builtins.eval", f"open({proof!r}, 'w').close()"), True),
    "torch.hub.load": (lambda proof: called("torch.hub.load", str(Path(proof).parent), "x"), True),
    "numpy.load": (lambda proof: called("numpy.load", proof), True),
    "getattr": (
        lambda proof: (
            b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(" + string("os") + b"tR"
            + string("system") + b"tR(" + string(f"touch {proof}") + b"tR"
        ),
        False,  # an object that is called
    ),
    "partial": (
        lambda proof: (
            b"cfunctools\npartial\n(cbuiltins\neval\n" + string(f"open({proof!r}, 'w').close()")
            + b"tR(tR"
        ),
        False,
    ),
    "__new__": (
        lambda proof: f"c{HERE}\nWritesWhenMade\n(".encode() + string(proof) + b"t\x81", True,
    ),
    "__setstate__": (
        lambda proof: f"c{HERE}\nWritesWhenRestored\n)\x81".encode("latin1") + string(proof) + b"b",
        True,
    ),
    "INST": (lambda proof: b"(" + string(f"touch {proof}") + b"ios\nsystem\n", False),
    "STACK_GLOBAL": (
        lambda proof: string("os") + string("system") + b"\x93" + string(proof) + b"\x85R", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_code_in_the_file_runs(tmp_path: Path, attack: str) -> None:
    opcodes, readable = ATTACKS[attack]
    proof = tmp_path / "proof"
    (tmp_path / "hubconf.py").write_text(f"open({str(proof)!r}, 'w').close()")
    path = write(tmp_path / "evil.ckpt", opcodes(str(proof)))
    if readable:
        content, replaced = read_foreign_checkpoint(path)
        assert torch.equal(content["weight"], WEIGHT)
        assert isinstance(content["evil"], Placeholder)
        assert replaced
    else:
        with pytest.raises(UserError, match=r"evil\.ckpt cannot be read"):
            read_foreign_checkpoint(path)
    assert not proof.exists()


@pytest.mark.parametrize("attack", ["eval", "__new__", "__setstate__", "getattr", "partial"])
def test_the_attacks_work_without_protection(tmp_path: Path, attack: str) -> None:
    proof = tmp_path / "proof"
    path = write(tmp_path / "evil.ckpt", ATTACKS[attack][0](str(proof)))
    torch.load(path, weights_only=False)
    assert proof.exists()


def test_safe_globals_of_other_libraries_are_not_called(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    path = write(tmp_path / "evil.ckpt", called(f"{HERE}.WritesWhenMade", str(proof)))
    with torch.serialization.safe_globals([WritesWhenMade, functools.partial]):
        read_foreign_checkpoint(path)
        assert not proof.exists()
        declared = torch.serialization.get_safe_globals()
        assert {WritesWhenMade, functools.partial} <= set(declared)
        assert not any(isinstance(entry, tuple) for entry in declared)  # no stub remains
        torch.load(path, weights_only=True)
    assert proof.exists()


def test_foreign_objects_are_placeholders(tmp_path: Path) -> None:
    Settings.__qualname__ = Settings.__name__ = "SettingsDict"
    globals()["SettingsDict"] = Settings
    content = {
        "callbacks": {Callback: Callback()},
        "path": Path("x"),
        "hyper_parameters": Settings(rate=0.1),
        "default": collections.defaultdict(list, a=[2]),
        "weight": WEIGHT,
    }
    torch.save(content, tmp_path / "foreign.ckpt")
    read, replaced = read_foreign_checkpoint(tmp_path / "foreign.ckpt")
    (value,) = read["callbacks"].values()
    assert isinstance(value, Placeholder)
    assert not hasattr(value, "best")  # its state is dropped
    assert read["default"] == {"a": [2]}
    assert read["hyper_parameters"] == {"rate": 0.1}
    assert torch.equal(read["weight"], WEIGHT)
    assert {f"{HERE}.Callback", f"{HERE}.SettingsDict"} < set(replaced)


def test_files_from_before_pytorch_1_6_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.ckpt"
    torch.save({"weight": WEIGHT, "epoch": 3}, path, _use_new_zipfile_serialization=False)
    content, replaced = read_foreign_checkpoint(path)
    assert torch.equal(content.pop("weight"), WEIGHT)
    assert (content, replaced) == ({"epoch": 3}, [])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, fraction: float, zipped: bool) -> None:
    path = tmp_path / "cut.ckpt"
    content = {"weight": torch.randn(100), "b": "text"}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(fraction * len(data))])
    with pytest.raises(UserError, match=r"cut\.ckpt cannot be read as .* incomplete"):
        read_foreign_checkpoint(path)


@pytest.mark.parametrize("content", [b"a photo", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match="other cannot be read as a PyTorch checkpoint"):
        read_foreign_checkpoint(tmp_path / "other")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MissingPathError, match="is not a file"):
            read_foreign_checkpoint(path)


def test_names_from_a_file_are_printable_and_short() -> None:
    assert printable_name("Größe 2") == "Größe 2"
    assert printable_name("n" * 80) == "n" * 80
    assert printable_name("n" * 10**6) == "n" * 79 + "…"
    assert printable_name("\x1b[31mred\n") == r"'\x1b[31mred\n'"
    assert printable_name("\x1b" * 1000).isprintable()
    assert printable_name(10**5000) == "<int>"  # `str` refuses so many digits
    assert printable_names(list("abcde"), at_most=3) == "a, b, c, and 2 more"
    assert printable_names([]) == ""
