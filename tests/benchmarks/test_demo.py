"""The demo's seeds in one table; the demos themselves are faked."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import demo

REPORT = {"psnr": 28.0, "codebook_usage": 1.0, "bits_per_token": 1.25, "distance_ratio": 0.95}


def test_seeds_share_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> None:
        seed, output_dir, *settings = command[2:]
        assert settings == ["num_samples=10"]
        directory = Path(output_dir.removeprefix("output_dir="))
        directory.mkdir(parents=True)
        own = {"agreement": 0.9 + int(seed[-1]) / 100, "num_samples": 10}
        cost = {"seconds": 200, "products": 2000}
        (directory / "report.json").write_text(json.dumps(REPORT | own | cost))

    monkeypatch.setattr(subprocess, "run", run)
    demo.main(["--seeds", "1", "4", "--output", str(tmp_path), "--set", "num_samples=10"])
    headings, *rows = capsys.readouterr().out.splitlines()[-6:]
    assert headings.split()[:2] == ["seed", "agreement"]
    shown = [["1", "0.91"], ["4", "0.94"], ["mean", "0.925"]]
    assert [row.split()[:2] for row in rows[:3]] == shown
    assert rows[3].split()[:3] == ["median", "0.925", "(0.91–0.94)"]
    assert "the largest process took" in rows[4]
    reports = json.loads((tmp_path / "seeds.json").read_text())
    assert reports["4"]["total_seconds"] < 200  # here no demo was run
