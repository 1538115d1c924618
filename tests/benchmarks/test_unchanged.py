"""Two checkouts compute the same, or the benchmark says which file differs."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import unchanged
from benchmarks.compare import ROOT


def test_a_checkout_equals_itself(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(unchanged, "TRAIN_AND_SAMPLE", ())
    (tmp_path / "llamagen").mkdir()
    (tmp_path / "llamagen" / "tokenizer").symlink_to(shared / "reference/llamagen/tokenizer")
    unchanged.main(["--checkout", str(ROOT), "--references", str(tmp_path)])
    assert "1 files, equal bit for bit" in capsys.readouterr().out


def test_checksums_depend_on_names_and_values(tmp_path: Path) -> None:
    numbers = np.arange(6.0)
    contents = ({"a": numbers}, {"b": numbers}, {"a": numbers + 1e-15})
    for number, arrays in enumerate(contents):
        np.savez(tmp_path / f"{number}.npz", **arrays)
    assert len({unchanged.checksum(path) for path in tmp_path.iterdir()}) == len(contents)


def test_different_results_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([{"samples.npz": "a"}, {"samples.npz": "b"}])
    monkeypatch.setattr(unchanged, "checksums", lambda *_: next(results))
    with pytest.raises(SystemExit, match="the results differ"):
        unchanged.main(["--checkout", str(ROOT)])
