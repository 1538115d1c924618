"""What loads and what kills: the loader's table, and when the fault drill kills a process."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import fault_drill, loader


def test_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.jpg")
    quick = ["--resolution=8", "--scale=2", "--num-workers=0", "--batches=1", "--rounds=1"]
    loader.main([str(tmp_path / "images"), *quick])
    lines = capsys.readouterr().out.splitlines()
    assert "0 loader processes" in lines[0]
    sources = [line.split("  ")[0] for line in lines[2:]]
    assert sources == ["torchvision", "folder, whole JPEGs", "folder", "zip", "shards", "parquet"]


SAVING = """
import sys, time
from pathlib import Path
place = Path(sys.argv[1], "checkpoints")
place.mkdir(parents=True)
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
def test_the_moment_of_a_kill(moment: str, rest: int, expected: bool, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(tmp_path), str(rest)], start_new_session=True
    )
    assert fault_drill.kill(process, tmp_path, moment, 0.1, random.Random(0)) == expected
    assert process.returncode == (-signal.SIGKILL if expected else 0)
