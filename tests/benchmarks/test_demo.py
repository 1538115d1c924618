"""The demo's seeds in one table; the demos themselves are faked."""

import json
from pathlib import Path

import pytest

from benchmarks import demo

REPORT = {"psnr": 28.0, "codebook_usage": 1.0, "bits_per_token": 1.25, "distance_ratio": 0.95}


def test_seeds_share_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_demo(seed: str, output_dir: str, *settings: str) -> dict[str, float]:
        assert settings == ("num_samples=10",)
        directory = Path(output_dir.removeprefix("output_dir="))
        directory.mkdir(parents=True)
        own = {"agreement": 0.9 + int(seed[-1]) / 100, "num_samples": 10}
        cost = {"seconds": 200, "products": 2000}
        (directory / "report.json").write_text(json.dumps(REPORT | own | cost))
        return {"total_seconds": 210.0, "peak_gigabytes": 1.5}

    monkeypatch.setattr(demo, "run_demo", run_demo)
    demo.main(["--seeds", "1", "4", "--output", str(tmp_path), "--set", "num_samples=10"])
    headings, *rows = capsys.readouterr().out.splitlines()[-5:]
    assert headings.split()[:2] == ["seed", "agreement"]
    assert [row.split()[:2] for row in rows[:3]] == [["1", "91.0"], ["4", "94.0"], ["mean", "92.5"]]
    assert rows[3].split()[:3] == ["median", "92.5", "(91.0–94.0)"]
    assert json.loads((tmp_path / "seeds.json").read_text())["4"]["peak_gigabytes"] == 1.5
