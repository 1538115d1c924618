"""The tables of the loader and the references, and the moment at which the fault drill kills."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_images import write_picture

from benchmarks import fault_drill, loader, references


def test_loader_times_every_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        for number in range(20):
            write_picture(tmp_path / "images" / name / f"{number}.jpg", seed=number)
    quick = ["--resolution=8", "--scale=2", "--num-workers=0", "--batches=1", "--rounds=1"]
    loader.main([str(tmp_path / "images"), *quick])
    lines = capsys.readouterr().out.splitlines()
    assert "0 loader processes" in lines[0]
    sources = [line.split("  ")[0] for line in lines[2:]]
    assert sources == ["torchvision", "folder, whole JPEGs", "folder", "zip", "shards", "parquet"]


def test_references_agree_with_other_programs(tmp_path: Path) -> None:
    rows = references.compare(tmp_path, 32, 200, None)
    pairs = {(row["file"], row["number"], row["computed by"]) for row in rows}
    assert ("torch_fidelity", "reference_fid", "torch-fidelity") in pairs
    assert ("adm", "reference_sfid", "ADM's formulas") in pairs
    assert len(pairs) == len(rows) == 13
    for row in rows:
        if "half" not in row["computed by"]:
            assert float(row["relative difference"]) < 1e-3, row


SAVING = """
import sys, time
from pathlib import Path
place = Path(sys.argv[1], "checkpoints")
Path(sys.argv[1], "started").touch()
place.mkdir(exist_ok=True)
for number in range(3):
    (place / f"{number}.unfinished").touch()
    time.sleep(0.1)
    (place / f"{number}.unfinished").rename(place / str(number))
    time.sleep(0.1)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("moment", "rest", "expected"), [("saving", 60, True), ("export", 0, False), ("any", 60, True)]
)
def test_kills_at_the_right_moment(moment: str, rest: int, expected: bool, tmp_path: Path) -> None:
    for name in ("checkpoints/0.unfinished", "model.unfinished"):  # left by an earlier kill
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(tmp_path), str(rest)], start_new_session=True
    )
    pattern = fault_drill.MOMENTS[moment]
    assert fault_drill.kill(process, tmp_path, pattern, 0.1) == expected
    assert process.returncode == (-signal.SIGKILL if expected else 0)
    assert (tmp_path / "started").exists() or moment == "any"
