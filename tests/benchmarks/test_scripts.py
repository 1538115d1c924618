"""Each benchmark runs once with tiny models, and with its peers where they are installed."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import autoencoder, ours, startup, studio, transformer
from benchmarks.command import DEFAULTS, main, parse_options, programs
from benchmarks.compare import ROOT
from benchmarks.peers.serve import count_flops
from taming.training.execution import Execution

PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
TINY = DEFAULTS | transformer.TINY | {"device": "cpu"}
OURS = """
def build(settings, measurement, tokens):
    d, layers = settings["embed_dim"], settings["num_layers"]
    parameters = {"blocks": layers * (12 * d * d + 13 * d)}
    return (lambda: tokens), {"versions": {}, "parameters": parameters}
"""


def run(script: ModuleType, *arguments: str) -> list[dict[str, Any]]:
    quick = ["--preset=tiny", "--device=cpu", "--threads=1", *arguments]
    return main(script.PRESETS, script.MEASUREMENTS, script.__doc__, quick)


def test_peers_use_the_precision_of_their_preset() -> None:
    arguments = ["--preset=tiny", "--dtype=bf16", f"--peer-python={sys.executable}"]
    options = parse_options(transformer.PRESETS, transformer.MEASUREMENTS, None, arguments)
    assert options.dtype == "bf16"
    assert [side.dtype for side in programs(options)] == [None, "float32", "float32"]


def test_autoencoder_without_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "speed" / "lines.jsonl"
    arguments = ["--peer-python", str(tmp_path / "python"), "--channels-last"]
    records = run(autoencoder, *arguments, f"--output={output}")
    assert [json.loads(line) for line in output.read_text().splitlines()] == records
    names = [r["settings"]["measurement"] for r in records]
    assert names == list(autoencoder.MEASUREMENTS)
    assert all(r["peer"] is None and len(r["ours"]["seconds"]) == 1 for r in records)
    assert records[0]["ours"]["parameters"].keys() == {"autoencoder", "discriminator", "perceptual"}
    printed = capsys.readouterr()
    assert "tiny: device cpu, threads 1, " in printed.out and ", resolution 16," in printed.out
    assert "compvis cannot be timed: no Python at" in printed.out
    assert f"wrote {output}" in printed.out


def test_transformer_with_another_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "before" / "benchmarks").mkdir(parents=True)
    (tmp_path / "before" / "benchmarks" / "ours.py").write_text(OURS)
    arguments = ["--peers", f"--checkout={tmp_path / 'before'}"]
    arguments += [f"--output={tmp_path / 'lines.jsonl'}"]
    arguments += ["--measurements", "gpt_step", "sample", "--set", "num_layers=3"]
    records = run(transformer, *arguments)
    assert [r["settings"]["measurement"] for r in records] == ["gpt_step", "sample"]
    d, v, n, layers, b = 8, 16, 9, 3, 2
    counts = {
        "blocks": layers * (12 * d * d + 13 * d),
        "embeddings": (v + n) * d,
        "head": 2 * d + d * v,
        "prefix": d,
    }
    for record in records:
        assert record["ours"]["parameters"] == counts
        assert record["peer"]["parameters"] == {"blocks": counts["blocks"]}
    # nine steps read all weights except the tables, and 1 + … + 9 cached keys and values
    num_values = n * (counts["blocks"] + counts["head"]) + 45 * (d + d) * layers * b
    assert records[1]["ours"]["bytes_read"] == 4 * num_values
    assert "taming at before" in capsys.readouterr().out


def test_sampling_compiled_and_with_guidance_in_bf16() -> None:
    settings = TINY | {"guidance_scale": 2.0, "dtype": "bf16"}
    call, facts = ours.build(settings, "sample_compiled", torch.zeros(2, 9, dtype=torch.int64))
    with torch.compiler.set_stance("force_eager"):
        first, second = call(), call()
    assert first.shape == (2, 9)
    assert torch.equal(first, second)
    assert facts["parameters"]["prefix"] == 2 * 8  # one class and no class
    assert facts["bytes_read"] % 2 == 0


def test_auto_uses_what_a_long_training_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def choose(precision: str, *arguments: Any, num_batches: int) -> Any:
        calls.append((precision, num_batches))
        return Execution("bf16-mixed", True, False)

    monkeypatch.setattr(ours, "choose_execution", choose)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    call, facts = ours.build(TINY | {"auto": True}, "gpt_step", tokens)
    assert calls == [("auto", 50_000)]
    assert facts["dtype"] == "bf16" and facts["channels_last"] and not facts["compile"]
    assert call().isfinite()


def test_counts_the_operations_of_a_step() -> None:
    call, _ = ours.build(TINY, "gpt_step", torch.zeros(2, 9, dtype=torch.int64))
    d, v, n, layers, b = 8, 16, 9, 2, 2
    # two operations for each weight of a matrix and token, in three passes; in attention QKᵀ and
    # softmax·V, then the four products of their gradients and QKᵀ again
    matrices = 3 * 2 * b * n * (layers * 12 * d * d + d * v)
    assert matrices <= count_flops(call) <= matrices + layers * b * 2 * n * n * d * (2 + 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "measurements", "num_records"),
    [
        (autoencoder, autoencoder.MEASUREMENTS, 4 + 3),
        (transformer, ["gpt_step", "sample"], 2 * 2),
    ],
)
def test_real_peers(
    script: ModuleType, measurements: list[str], num_records: int, tmp_path: Path
) -> None:
    if not PEER_PYTHON.is_file():
        pytest.skip(f"needs the peers' environment at {PEER_PYTHON}")
    options = [f"--peer-python={PEER_PYTHON}", f"--output={tmp_path / 'lines.jsonl'}"]
    records = run(script, *options, "--measurements", *measurements)
    assert sum(r["peer"] is not None for r in records) == num_records  # with equal architectures


def test_presets_have_the_published_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "build_step", lambda *arguments: None)  # build the model, run nothing

    def parameters(case: dict[str, Any], measurement: str) -> dict[str, int]:
        with torch.device("meta"):
            inputs = torch.zeros(case["batch_size"], case.get("num_tokens", 1), dtype=torch.int64)
            settings = {**DEFAULTS, "device": "cpu", **case}
            return ours.build(settings, measurement, inputs)[1]["parameters"]

    f16 = autoencoder.PRESETS["gpu"]["cases"]["f16"]
    assert parameters(f16, "autoencoder_step") == {"autoencoder": 71_879_555 + 1024 * 256}
    # 12 d² + 13 d in each block, two tables of codes, positions, the last norm, the start id
    for preset, (layers, d, codes) in {"cpu": (8, 512, 1024), "gpu": (24, 1024, 16384)}.items():
        for name, case in transformer.PRESETS[preset]["cases"].items():
            counts = parameters(case, "sample")
            ids = counts.pop("prefix")
            size = layers * (12 * d**2 + 13 * d) + (2 * codes + 256 + 2) * d
            assert sum(counts.values()) == size, name
            assert ids == d * (1 if case["guidance_scale"] == 1 else 2)


def test_startup_times_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    startup.main(["--rounds=1", "--commands", "help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["taming", "s"]
    assert lines[2].startswith("help  ")


@pytest.mark.browser
def test_studio_times_clicks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio")
    pytest.importorskip("playwright")
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium")
    startup.write_generator(tmp_path / "generator")
    arguments = [str(tmp_path / "generator"), "--images", "2", "--rounds=1", "--quiet=0.5"]
    studio.main(arguments)
    heading, cells = capsys.readouterr().out.splitlines()[-2:]
    assert heading.startswith("images  first picture")
    first, whole = [float(seconds) for seconds in cells.split()[1:4:2]]
    assert 0 < first <= whole
