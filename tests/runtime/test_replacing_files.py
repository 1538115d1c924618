"""Files are replaced as a whole, and never written through a link."""

from pathlib import Path

import pytest

from taming.runtime.errors import escapes, replacing


@pytest.mark.parametrize("mode", ["w", "wb"])
@pytest.mark.parametrize("name", ["last.ckpt", "last.unfinished"])
def test_replacing_follows_no_link(tmp_path: Path, mode: str, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / name).symlink_to(precious)
    with replacing(tmp_path / "last.ckpt", mode) as file:
        file.write("new" if mode == "w" else b"new")
    assert precious.read_text() == "precious"
    assert (tmp_path / "last.ckpt").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "last.ckpt"}
    assert not (tmp_path / "last.ckpt").is_symlink()


def test_a_failure_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    path.with_suffix(".unfinished").write_text("of a killed process")
    with pytest.raises(RuntimeError, match="half"), replacing(path) as file:
        file.write("ne")
        raise RuntimeError("half")
    assert path.read_text() == "earlier"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_paths_that_escape(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "run" / "out").symlink_to(tmp_path)
    (tmp_path / "run" / "loop").symlink_to("loop")
    run = tmp_path / "link"
    for inside in (run, run / "a" / ".." / "b", tmp_path / "run" / "c", run / "loop"):
        assert not escapes(inside, run)
    for outside in (tmp_path, run / "..", run / "out", run / "out" / "x", Path("/")):
        assert escapes(outside, run)
