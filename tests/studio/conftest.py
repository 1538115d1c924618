"""Studios of tiny models, served on this machine, and a browser to open them in."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_studios import write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def studios(run: Path) -> Iterator[dict[str, str]]:
    """The addresses of all studios.

    A process of its own serves them: Gradio's server leaves sockets open in the one it ends in.
    """
    if find_spec("gradio") is None:
        pytest.skip("needs Gradio: pip install -e '.[studio]'")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "studio" / "tiny_studios.py"), str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()
