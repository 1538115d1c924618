"""What the demo promises, checked on a finished one: TAMING_DEMO=outputs/demo make test."""

import json
import os
from pathlib import Path

import pytest


def test_demo_is_as_good_as_promised() -> None:
    directory = os.environ.get("TAMING_DEMO")
    if directory is None:
        pytest.skip("no demo named by TAMING_DEMO")
    report = json.loads((Path(directory) / "report.json").read_text())
    assert report["psnr"] >= 25
    assert report["codebook_usage"] >= 0.95
    assert report["num_samples"] == 200
    assert report["agreement"] >= 0.9
    assert report["distance_ratio"] >= 0.7
    assert report["bits_per_token"] < 6  # log₂ of the codebook size, what guessing costs
