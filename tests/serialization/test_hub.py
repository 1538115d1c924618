"""Models on the hub, with a local server that stands in for it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, Hub, running_hub
from tiny_models import tiny_generator, tiny_vqgan

from taming.conditioning import Unconditional
from taming.report.share import finished_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def program(
    tmp_path: Path, endpoint: str, *arguments: str, token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    """Runs Python with this hub as its only endpoint."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")}
    if token is not None:
        environment["HF_TOKEN"] = token
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


PUSH_AND_LOAD = """
import sys, taming, torch
from taming.serialization import load_saved_model
vqgan = taming.VQGAN.from_pretrained("vqgan")
first = vqgan.push_to_hub("me/vqgan")
with torch.no_grad():
    vqgan.last_layer.add_(1.0)
second = vqgan.push_to_hub("me/vqgan")
assert first != second
prints = [load_saved_model(name).fingerprint() for name in ("vqgan", first, second, "hf:me/vqgan")]
assert prints[0] == prints[1] != prints[2] == prints[3]  # a commit is fixed, the bare name is not
generator = taming.ImageGenerator.from_pretrained("generator")
name = generator.push_to_hub("me/generator", private=True)
again = taming.ImageGenerator.from_pretrained(name)
assert torch.equal(again.sample(2, seed=0), generator.sample(2, seed=0))
print(first)
for name in ("hf:me/missing", "hf:me/vqgan@0123", "hf:no name"):
    try:
        load_saved_model(name)
    except taming.runtime.errors.UserError as error:
        print(error)
"""


def test_models_are_pushed_and_loaded_by_commit(tmp_path: Path, hub: Hub) -> None:
    tiny_vqgan().save_pretrained(tmp_path / "vqgan")
    tiny_generator(Unconditional(), (2, 2)).save_pretrained(tmp_path / "generator")
    process = program(tmp_path, hub.endpoint, "-c", PUSH_AND_LOAD)
    assert process.returncode == 0, process.stderr
    first, *errors = process.stdout.splitlines()
    oldest = next(iter(hub.repos["me/vqgan"]))
    assert first == f"hf:me/vqgan@{oldest}"
    assert sorted(hub.repos["me/vqgan"][oldest]) == ["config.json", "model.safetensors"]
    assert len(errors) == 3  # one line each
    for error, name in zip(errors, ("me/missing", "me/vqgan@0123", "no name"), strict=True):
        assert error.startswith(f"hf:{name} could not be downloaded from the Hugging Face hub: ")


def test_hub_errors_are_one_line(tmp_path: Path) -> None:
    tiny_vqgan().save_pretrained(tmp_path / "model")
    share = (str(ROOT / "scripts" / "share.py"), "checkpoint=model", "repo=me/name", "license=mit")
    nowhere = "http://127.0.0.1:9"
    for token, message in (
        (None, "because no Hugging Face token was found. Log in"),
        (TOKEN, f"hub: {nowhere} cannot be reached. Check the network"),
    ):
        process = program(tmp_path, nowhere, *share, token=token)
        assert process.returncode == 2, process.stderr
        assert re.fullmatch(r"error: .*\n", process.stderr), process.stderr
        assert message in process.stderr


def test_sharing_a_run_writes_a_model_card(tmp_path: Path, hub: Hub) -> None:
    run = tmp_path / "run"
    tiny_vqgan().save_pretrained(run / "model")
    (run / "grids").mkdir()
    for step, content in ((5, b"older"), (10, b"newer")):
        (run / "grids" / f"reconstructions_{step:07d}.png").write_bytes(content)
    (run / "report.html").write_text("<p>a report")
    result = {
        "step": 12, "exported_step": 12, "metrics_step": 10, "metrics": {"val/psnr": 20.123456},
        "device": "a processor", "versions": {"taming": "0.1.0+c0ffee"},
    }  # fmt: skip
    (run / "result.json").write_text(json.dumps(result))
    (run / "config.yaml").write_text("data: {path: /home/me/secret/cats.zip}\nseed: 3\n")
    (run / "evaluation").mkdir()
    metrics = {"psnr": 19.5, "contract": {"images": 40, "resize": "shorter_side"}}
    (run / "evaluation" / "metrics.json").write_text(json.dumps(metrics))
    share = str(ROOT / "scripts" / "share.py")
    settings = ("checkpoint=run", "repo=me/cats", "license=cc-by-4.0")
    process = program(tmp_path, hub.endpoint, share, *settings)
    assert process.returncode == 0, process.stderr
    (commit,) = hub.repos["me/cats"]
    assert process.stdout.splitlines()[-1].strip() == f"hf:me/cats@{commit}"
    files = hub.repos["me/cats"][commit]
    assert sorted(files) == [
        "README.md", "config.json", "grid.png", "model.safetensors", "report.html"
    ]  # fmt: skip
    assert files["grid.png"] == b"newer"
    card = re.sub(" +", " ", files["README.md"].decode())
    assert card.startswith("---\nlibrary_name: taming\nlicense: cc-by-4.0\n")
    for part in (
        "taming.VQGAN.from_pretrained('hf:me/cats')",
        "| validated at step | 10 |",
        "| val/psnr | 20.12 |",
        "| versions | taming 0.1.0+c0ffee |",
        "| data | cats.zip |",
        "| data.path | cats.zip |",
        "**evaluation/metrics.json**",
        "| psnr | 19.5 |",
        "| resize | shorter_side |",
    ):
        assert part in card
    assert "/home/me" not in card


def test_only_the_final_model_has_the_numbers_of_its_run(tmp_path: Path) -> None:
    tiny_vqgan().save_pretrained(tmp_path / "model")
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    for path in (tmp_path / "result.json", tmp_path / "config.yaml", last):
        path.write_text("{}")
    assert finished_run(tmp_path) is not None and finished_run(tmp_path / "model") is not None
    assert finished_run(last) is None
