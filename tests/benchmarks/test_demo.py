"""The table over seeds, with fake demos."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import demo

REPORT = {"psnr": 28.0, "codebook_usage": 1.0, "bits_per_token": 1.25, "distance_ratio": 0.95}


def test_all_seeds_are_in_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> None:
        seed, output_dir, *settings = command[2:]
        assert settings == ["num_samples=10"]
        directory = Path(output_dir.removeprefix("output_dir="))
        directory.mkdir(parents=True)
        samples = {"agreement": 0.9 + int(seed[-1]) / 100, "num_samples": 10}
        cost = {"seconds": 200, "products": 2000}
        (directory / "report.json").write_text(json.dumps(REPORT | samples | cost))

    monkeypatch.setattr(subprocess, "run", run)
    demo.main(["--seeds", "1", "4", "--output", str(tmp_path), "--set", "num_samples=10"])
    headings, *rows = capsys.readouterr().out.splitlines()[-6:]
    assert headings.split()[:2] == ["seed", "agreement"]
    expected = [["1", "0.91"], ["4", "0.94"], ["mean", "0.925"]]
    assert [row.split()[:2] for row in rows[:3]] == expected
    assert rows[3].split()[:3] == ["median", "0.925", "(0.91–0.94)"]
    assert "the largest process used" in rows[4]
    reports = json.loads((tmp_path / "seeds.json").read_text())
    assert reports["4"]["total_seconds"] < 200  # the fake demo takes no time
