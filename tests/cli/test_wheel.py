"""An installed wheel finds its configs, away from any checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel_carries_configs_and_commands(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    scripts = next((tmp_path / "site").glob("*.dist-info")) / "entry_points.txt"
    names = ("train-vqgan", "train-transformer", "sample", "import-checkpoint", "reconstruct")
    more_names = ("evaluate", "encode-dataset", "compare", "demo", "report", "share", "studio")
    for name in names + more_names:
        module = f"taming.cli.{name.replace('-', '_')}"
        assert f"taming-{name} = {module}:main" in scripts.read_text()
    check = (
        "import taming, sys; assert 'site' in taming.__file__, taming.__file__;"
        "from taming.cli.sample import main; main()"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", check, "--cfg", "job"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "temperature: 1.0" in outcome.stdout
