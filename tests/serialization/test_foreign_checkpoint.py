"""Checkpoints of other programs: their weights come out, and nothing in them is run."""

import collections
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from taming.errors import MissingPathError, UserError
from taming.serialization import read_foreign_checkpoint
from taming.serialization.foreign import Placeholder

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "stream"])
WEIGHT = torch.arange(6.0).reshape(2, 3)


class WritesWhenMade:
    def __new__(cls, path: str) -> "WritesWhenMade":
        Path(path).touch()
        return super().__new__(cls)


class WritesWhenRestored:
    def __setstate__(self, path: str) -> None:
        Path(path).touch()


class WritesWhenFilled(dict[str, str]):
    def __setitem__(self, key: str, path: str) -> None:
        Path(path).touch()


class Callback:
    def __init__(self) -> None:
        self.best = torch.ones(1)


def save(path: Path, content: Any, zipped: bool) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def edit(path: Path, change: Callable[[bytes], bytes], name: str = "data.pkl") -> None:
    """Changes the pickles of a file of either format."""
    if not zipfile.is_zipfile(path):
        path.write_bytes(change(path.read_bytes()))
        return
    with zipfile.ZipFile(path) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in files.items():
            archive.writestr(entry, change(data) if entry.endswith(f"/{name}") else data)


def string(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def name(module: str, attribute: str) -> bytes:
    return string(module) + string(attribute) + b"\x93"  # STACK_GLOBAL follows dots


def called(function: bytes, argument: str) -> bytes:
    return function + string(argument) + b"\x85R"


HERE = __name__
ATTACKS: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda proof: called(b"cos\nsystem\n", f"touch {proof}"),
    "eval": lambda proof: called(b"cbuiltins\neval\n", f"open({str(proof)!r}, 'w').close()"),
    "INST": lambda proof: b"(" + string(f"touch {proof}") + b"ios\nsystem\n",
    "OBJ": lambda proof: b"(" + name("os", "system") + string(f"touch {proof}") + b"o",
    "NEWOBJ": lambda proof: name(HERE, "WritesWhenMade") + string(str(proof)) + b"\x85\x81",
    "NEWOBJ_EX": lambda proof: (
        name(HERE, "WritesWhenMade") + string(str(proof)) + b"\x85" + b"}" + b"\x92"
    ),
    "BUILD": lambda proof: name(HERE, "WritesWhenRestored") + b")\x81" + string(str(proof)) + b"b",
    "SETITEM": lambda proof: (
        name(HERE, "WritesWhenFilled") + b")\x81" + string("key") + string(str(proof)) + b"s"
    ),
    "APPENDS": lambda proof: (
        name("collections", "CallsEach") + b")R" + b"(" + string(str(proof)) + b"e"
    ),
    "behind torch": lambda proof: called(
        name("torch.serialization", "os.system"), f"touch {proof}"
    ),
    "behind collections": lambda proof: called(b"ccollections\nSortedDict\n", str(proof)),
    "persistent id": lambda proof: called(b"cos\nsystem\n", f"touch {proof}") + b"\x85Q",
}


class CallsEach:
    def extend(self, paths: list[str]) -> None:
        for path in paths:
            Path(path).touch()


def evil_checkpoint(path: Path, proof: Path, attack: str, zipped: bool) -> None:
    """A checkpoint with the attack among its weights, and once more beside them."""
    save(path, {"state_dict": {"evil": None, "weight": WEIGHT}, "evil": None}, zipped)
    opcodes = ATTACKS[attack](proof)

    def insert(pickled: bytes) -> bytes:
        # where None follows the string `evil`, or the memo's copy of it
        pickled, count = re.subn(rb"(evilq(.))N", lambda m: m[1] + opcodes, pickled, flags=re.S)
        assert count == 1
        (memo,) = re.findall(rb"evilq(.)", pickled, flags=re.S)
        changed = pickled.replace(b"h" + memo + b"N", b"h" + memo + opcodes)
        assert changed != pickled
        return changed.replace(b"\x80\x02}", b"\x80\x04}")  # from protocol 4 on, names have dots

    edit(path, insert)


@FORMATS
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_in_the_file_is_run(
    tmp_path: Path, attack: str, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "SortedDict", WritesWhenMade, raising=False)
    monkeypatch.setattr(collections, "CallsEach", CallsEach, raising=False)
    path, proof = tmp_path / "evil.ckpt", tmp_path / "proof"
    evil_checkpoint(path, proof, attack, zipped)
    read = read_foreign_checkpoint(path)
    assert not proof.exists()
    assert torch.equal(read.content["state_dict"]["weight"], WEIGHT)
    assert all(isinstance(evil, Placeholder) for evil in
               (read.content["evil"], read.content["state_dict"]["evil"]))  # fmt: skip
    assert read.not_built
    try:  # the attack is real: an ordinary reader runs it
        torch.load(path, weights_only=False)
    except Exception:
        assert attack == "persistent id"
    assert proof.exists()


def test_what_may_be_built_cannot_be_changed(tmp_path: Path) -> None:
    """BUILD sets attributes on whatever the file names, torch's own functions too."""
    state = b"N}" + string("poisoned") + b"\x88s\x86"  # (None, {"poisoned": True})
    pickled = b"\x80\x04" + name("torch._utils", "_rebuild_tensor_v2") + state + b"b."
    with zipfile.ZipFile(tmp_path / "evil.ckpt", "w") as archive:
        archive.writestr("evil/data.pkl", pickled)
    read_foreign_checkpoint(tmp_path / "evil.ckpt")
    assert not hasattr(torch._utils._rebuild_tensor_v2, "poisoned")
    pickle.loads(pickled)
    assert hasattr(torch._utils._rebuild_tensor_v2, "poisoned")
    del torch._utils._rebuild_tensor_v2.poisoned


@FORMATS
def test_plain_data_and_tensors_come_out_as_they_went_in(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24.0)
    tensors = {
        "plain": base.reshape(4, 6),
        "shares its storage": base[3:9],
        "transposed": base.reshape(4, 6).T[1:, ::2],
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "bool": torch.tensor([True, False]),
        **{str(d): torch.tensor([1, 2], dtype=d) for d in (torch.half, torch.bfloat16,
           torch.double, torch.int32, torch.int16, torch.int8, torch.uint8)},
    }  # fmt: skip
    module = torch.nn.BatchNorm2d(3)
    plain = {
        "numbers": [1, -1, 2**40, 2**200, 0.5, True, None],
        "strings": ("ä", "", b"\x00\xff", {"a", "b"}),
        1: {"nested": [{}, [], ()]},
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, b=[2]),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
    }
    content = {"tensors": tensors, "module": module.state_dict(), **plain}
    path = save(tmp_path / "plain.ckpt", content, zipped)
    read = read_foreign_checkpoint(path)
    assert read.not_built == ()
    for part, originals in (("tensors", tensors), ("module", module.state_dict())):
        found = read.content.pop(part)
        assert found.keys() == originals.keys()
        for key, original in originals.items():
            assert found[key].dtype == original.dtype, key
            assert torch.equal(found[key], original), key
    assert read.content == plain


@FORMATS
def test_foreign_objects_are_placeholders(tmp_path: Path, zipped: bool) -> None:
    content = {"callbacks": {Callback: Callback()}, "path": Path("x"), "weight": WEIGHT}
    read = read_foreign_checkpoint(save(tmp_path / "foreign.ckpt", content, zipped))
    ((key, value),) = read.content["callbacks"].items()
    assert key.name == value.name == f"{HERE}.Callback"
    assert f"{HERE}.Callback" in read.not_built
    assert len(read.not_built) == 2  # and the path's class
    assert not hasattr(value, "best")  # its state is dropped


@FORMATS
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_truncated_files_are_named(tmp_path: Path, fraction: float, zipped: bool) -> None:
    path = save(tmp_path / "cut.ckpt", {"weight": torch.randn(100), "b": "text"}, zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(fraction * len(data))])
    with pytest.raises(UserError, match=r"cut\.ckpt cannot be read as .* incomplete") as caught:
        read_foreign_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"\x89PNG\r\n\x1a\n" + bytes(100), b"a photo", b"\x80\x02K\x01.", b"PK\x03\x04" + bytes(50)],
)
def test_other_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match="other cannot be read as a PyTorch checkpoint"):
        read_foreign_checkpoint(tmp_path / "other")


def test_paths_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match=r"no\.ckpt does not exist"):
        read_foreign_checkpoint(tmp_path / "no.ckpt")
    with pytest.raises(UserError, match="is a directory"):
        read_foreign_checkpoint(tmp_path)


@FORMATS
def test_a_tensor_cannot_reach_beyond_its_storage(tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path / "lies.ckpt", {"weight": torch.zeros(5)}, zipped)
    size = b"K\x05\x85"  # (5,)
    edit(path, lambda data: data.replace(size, b"J\x00\x00\x00\x7f\x85"))
    with pytest.raises(UserError, match=r"lies\.ckpt.*storage"):
        read_foreign_checkpoint(path)


@FORMATS
def test_a_tensor_has_no_more_elements_than_its_storage(tmp_path: Path, zipped: bool) -> None:
    """Of stride 0, a few bytes would be as many numbers as the file likes."""
    path = save(tmp_path / "lies.ckpt", {"weight": torch.zeros(5)}, zipped)
    shape = re.compile(rb"K\x05\x85(q.)K\x01\x85", re.S)  # (5,), (1,)
    assert len(shape.findall(path.read_bytes())) == 1
    edit(path, lambda data: shape.sub(lambda m: b"M\xe8\x03\x85" + m[1] + b"K\x00\x85", data))
    with pytest.raises(UserError, match=r"lies\.ckpt.*more elements than its storage"):
        read_foreign_checkpoint(path)


@FORMATS
def test_a_storage_cannot_be_larger_than_the_file(tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path / "lies.ckpt", {"weight": torch.zeros(5)}, zipped)
    stated = re.compile(rb"(cpuq.)K\x05", re.S)  # location, number of elements
    edit(path, lambda data: stated.sub(lambda m: m[1] + b"J\x00\x00\x00\x7f", data))
    with pytest.raises(
        UserError, match=r"lies\.ckpt.*with storage \d+, more is stated than is in the file"
    ):
        read_foreign_checkpoint(path)


def test_storages_are_together_no_larger_than_the_file(tmp_path: Path) -> None:
    content = {"a": torch.zeros(500), "b": torch.zeros(500)}
    path = save(tmp_path / "lies.ckpt", content, zipped=False)
    stated = re.compile(rb"M\xf4\x01(N?q.tq.Q|N?tq.Q)", re.S)  # the number of elements, 500
    assert len(stated.findall(path.read_bytes())) == 2
    edit(path, lambda data: stated.sub(lambda m: b"M\x20\x03" + m[1], data))
    size = path.stat().st_size
    assert 4 * 800 < size < 2 * 4 * 800  # each storage alone may be in the file
    with pytest.raises(UserError, match=r"with storage \d+, more is stated than is in the file"):
        read_foreign_checkpoint(path)


@pytest.mark.parametrize("compressed", ["data.pkl", "data/0"])
def test_compressed_files_are_not_unpacked(tmp_path: Path, compressed: str) -> None:
    """A small file of zeros unpacks to gigabytes; torch.save compresses nothing."""
    path = save(tmp_path / "bomb.ckpt", {"weight": torch.zeros(5)}, zipped=True)
    with zipfile.ZipFile(path) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in files.items():
            method = zipfile.ZIP_DEFLATED if entry.endswith(compressed) else zipfile.ZIP_STORED
            archive.writestr(entry, data, method)
    with pytest.raises(UserError, match=rf"/{compressed} in it is compressed"):
        read_foreign_checkpoint(path)


def test_numbers_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "big.ckpt", {"weight": WEIGHT}, zipped=True)
    edit(path, lambda order: b"big" if order == b"little" else b"little", "byteorder")
    with pytest.raises(UserError, match="endian"):
        read_foreign_checkpoint(path)


def test_every_storage_must_be_in_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "less.ckpt", {"weight": WEIGHT}, zipped=False)
    keys = re.compile(rb"\]q\x00X....\d+q\x01a\.", re.S)  # the pickled list of the one storage
    assert len(keys.findall(path.read_bytes())) == 1
    edit(path, lambda data: keys.sub(b"].", data))
    with pytest.raises(UserError, match="storages are not those of its tensors"):
        read_foreign_checkpoint(path)  # and not zeros


FLOATS = (  # a tensor of two numbers, of the storage "0"
    b"ctorch._utils\n_rebuild_tensor_v2\n(("
    + string("storage")
    + b"ctorch\nFloatStorage\n"
    + string("0")
    + string("cpu")
    + b"K\x02tQK\x00K\x02\x85K\x01\x85\x89}tR"
)
NESTED = b")" + 300_000 * b"\x85"  # ((((…)))), whose hash is found by recursion


def read_opcodes(folder: Path, opcodes: bytes) -> Any:
    with zipfile.ZipFile(folder / "x.ckpt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x05" + opcodes + b".")
        archive.writestr("x/data/0", struct.pack("=2f", 1, 2))
    return read_foreign_checkpoint(folder / "x.ckpt").content


@pytest.mark.parametrize("kind", ["list", "tuple", "set", "frozenset", "dict"])
def test_containers_are_made_of_containers_only(tmp_path: Path, kind: str) -> None:
    """A tensor of many numbers would become as many tensors."""
    assert torch.equal(read_opcodes(tmp_path, FLOATS), torch.tensor([1.0, 2.0]))
    for module in ("builtins", "__builtin__"):
        function = f"c{module}\n{kind}\n".encode()
        for filling in (FLOATS, string("ab")):
            with pytest.raises(UserError, match="container made of something else"):
                read_opcodes(tmp_path, function + filling + b"\x85R")
        assert len(read_opcodes(tmp_path, function + b"]\x85R")) == 0


@pytest.mark.parametrize(
    "opcodes",
    [
        b"}" + NESTED + b"Ns",
        b"}(" + NESTED + b"Nu",
        b"(" + NESTED + b"Nd",
        b"\x8f(" + NESTED + b"\x90",
        b"(" + NESTED + b"\x91",
        b"cbuiltins\nset\n]" + NESTED + b"a\x85R",
        b"cbuiltins\nfrozenset\n]" + NESTED + b"a\x85R",
        b"ccollections\nOrderedDict\n]" + NESTED + b"N\x86a\x85R",
        b"}" + FLOATS + b"Ns",
    ],
    ids=["SETITEM", "SETITEMS", "DICT", "ADDITEMS", "FROZENSET", "set", "frozenset", "pairs",
         "tensor"],
)  # fmt: skip
def test_keys_are_plain(tmp_path: Path, opcodes: bytes) -> None:
    with pytest.raises(UserError, match="a key that is no plain value"):
        read_opcodes(tmp_path, opcodes)


def test_keys_may_be_plain_or_flat(tmp_path: Path) -> None:
    keys: list[Any] = ["a", 1, 0.5, True, None, b"b", ("c", 2), ()]
    assert read_opcodes(tmp_path, pickle.dumps(dict.fromkeys(keys), 4)[2:-1]).keys() == set(keys)


# A tuple of twice the one before it, and so on: `str` of it would be of 2^60 parts.
DOUBLED = b")" + 60 * b"2\x86"


@pytest.mark.parametrize(
    "opcodes",
    [
        DOUBLED + string("name") + b"\x93",
        string("module") + DOUBLED + b"\x93",
        string("module") + string(501 * "n") + b"\x93",
        b"c_codecs\nencode\n" + string("text") + DOUBLED + b"\x86R",
        FLOATS.replace(string("0"), DOUBLED),
        FLOATS.replace(string("0"), NESTED),
        FLOATS.replace(b"K\x02tQ", DOUBLED + b"tQ"),
        FLOATS.replace(b"K\x02\x85", DOUBLED + b"\x85"),
    ],
    ids=["module", "name", "long name", "encoding", "storage", "deep storage", "length", "size"],
)
def test_names_and_sizes_are_what_they_must_be(tmp_path: Path, opcodes: bytes) -> None:
    with pytest.raises(UserError, match=r"x\.ckpt cannot be read") as caught:
        read_opcodes(tmp_path, opcodes)
    assert len(str(caught.value)) < 1000


def test_nothing_is_copied_over_and_over(tmp_path: Path) -> None:
    """Small calls that copy one large value: memory would grow as the square of the file."""
    twice = b"ccollections\nOrderedDict\n\x94]\x94(" + 1000 * b")" + b"e\x94"  # memo 0, 1
    copies = b"cbuiltins\nlist\n\x94](" + 10 * b"h\x03h\x01\x85R" + b"e"
    with pytest.raises(UserError, match="copies more than it holds"):
        read_opcodes(tmp_path, twice + copies)


@FORMATS
def test_messages_hold_nothing_unprintable(tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path / "x.ckpt", {"weight": torch.zeros(5)}, zipped)
    key = re.compile(rb"(Storage\nq.X)....(\d+)(q.X\x03\x00\x00\x00cpuq.)K\x05", re.S)
    assert len(key.findall(path.read_bytes())) == 1
    name = string("\x1b[2J" + 1000 * "k")[1:]
    edit(path, lambda data: key.sub(lambda m: m[1] + name + m[3] + b"M\xff\xff", data))
    with pytest.raises(UserError, match="more is stated") as caught:
        read_foreign_checkpoint(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "opcodes",
    [b"e", b"R", b"h\x09", b"\x97", b"", b"}K\x01R", b"K\x01K\x02a", b"K\x01K\x02K\x03s"],
)
def test_pickles_that_make_no_sense_are_damaged(tmp_path: Path, opcodes: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "x.ckpt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x05" + opcodes + b".")
    with pytest.raises(UserError, match=r"x\.ckpt cannot be read"):
        read_foreign_checkpoint(tmp_path / "x.ckpt")
