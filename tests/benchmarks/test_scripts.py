"""Each script runs once, tiny; its peers too where their environment is."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import autoencoder, startup, transformer
from benchmarks.command import main
from benchmarks.compare import ROOT
from benchmarks.peers.serve import count_flops

PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
QUICK = ["--device=cpu", "--threads=1", "--rounds=1", "--warmup=0", "--turn-seconds=0"]
TINY_AUTOENCODER = [
    *QUICK,
    *("--cases", "ch32", "--set", "batch_size=2", "resolution=16", "num_residual_blocks=1"),
    *("latent_channels=32", "codebook_size=8", "codebook_dim=4", "discriminator_channels=4"),
    "discriminator_layers=1",
]
TINY_TRANSFORMER = [
    *QUICK,
    *("--cases", "sample_2", "step_2", "--set", "num_tokens=9", "num_layers=2", "num_heads=2"),
    *("embed_dim=8", "codebook_size=16", "top_k=4"),
]
OURS = """
def build(settings, measurement, tokens):
    d, layers = settings["embed_dim"], settings["num_layers"]
    parameters = {"blocks": layers * (12 * d * d + 13 * d)}
    return (lambda: tokens), {"versions": {}, "parameters": parameters}
"""


def run(script: ModuleType, *arguments: str) -> list[dict[str, Any]]:
    return main(script.PRESETS, script.MEASUREMENTS, script.__doc__, arguments)


def test_autoencoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "speed" / "lines.jsonl"
    arguments = ["--peer-python", str(tmp_path / "python"), "--channels-last"]
    records = run(autoencoder, *TINY_AUTOENCODER, *arguments, f"--output={output}")
    assert [json.loads(line) for line in output.read_text().splitlines()] == records
    measured = [r["settings"]["measurement"] for r in records]
    assert measured == list(autoencoder.MEASUREMENTS)
    assert all(r["peer"] is None and len(r["ours"]["seconds"]["rounds"]) == 1 for r in records)
    assert records[0]["ours"]["parameters"].keys() == {"autoencoder", "discriminator", "perceptual"}
    printed = capsys.readouterr()
    assert "ch32: images 2×3×16×16; " in printed.out
    assert "compvis cannot be timed: no Python at" in printed.out
    assert f"wrote {output}" in printed.out


def test_transformer_beside_another_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "before" / "benchmarks").mkdir(parents=True)
    (tmp_path / "before" / "benchmarks" / "ours.py").write_text(OURS)
    arguments = ["--peers", f"--checkout={tmp_path / 'before'}"]
    arguments += [f"--output={tmp_path / 'lines.jsonl'}"]
    measurements = ["--measurements", "gpt_step", "sample"]
    records = run(transformer, *TINY_TRANSFORMER, *arguments, *measurements)
    assert [(r["settings"]["name"], r["settings"]["measurement"]) for r in records] == [
        ("sample_2", "sample"),
        ("step_2", "gpt_step"),
    ]
    d, v, n, layers, b = 8, 16, 9, 2, 2
    counts = {
        "blocks": layers * (12 * d * d + 13 * d),
        "embeddings": (v + n) * d,
        "head": 2 * d + d * v,
        "prefix": d,
    }
    for record in records:
        assert record["ours"]["parameters"] == counts
        assert record["peer"]["parameters"] == {"blocks": counts["blocks"]}
    # nine steps that read all weights but the tables', and 1 + … + 9 tokens' keys and values
    read = n * (counts["blocks"] + counts["head"]) + 45 * (d + d) * layers * b
    assert records[0]["ours"]["bytes_read"] == 4 * read
    assert "taming at before" in capsys.readouterr().out


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    from benchmarks import ours

    return ours


def test_sampling_compiled_and_with_guidance_in_bf16(ours: ModuleType) -> None:
    settings = {"codebook_size": 16, "num_layers": 1, "num_heads": 2, "embed_dim": 8, "top_k": 4}
    settings |= {"num_tokens": 4, "guidance_scale": 2.0, "dtype": "bf16", "compile": False}
    call, facts = ours.build(settings, "sample_compiled", torch.zeros(2, 4, dtype=torch.int64))
    with torch.compiler.set_stance("force_eager"):
        first, second = call(), call()
    assert first.shape == (2, 4)
    assert torch.equal(first, second)
    assert facts["parameters"]["prefix"] == 2 * 8  # one class, and none
    assert facts["bytes_read"] % 2 == 0


def test_a_step_as_a_long_training_chooses_it(
    ours: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def choose(wanted: Any, *arguments: Any, num_steps: int, **options: Any) -> Any:
        asked.append((wanted, num_steps))
        return ours.Execution("bf16-mixed", True, False)

    monkeypatch.setattr(ours, "choose_execution", choose)
    settings = {"codebook_size": 16, "num_layers": 1, "num_heads": 2, "embed_dim": 8}
    settings |= {"num_tokens": 4, "guidance_scale": 1.0, "device": "cpu", "auto": True}
    settings |= {"dtype": "float32", "compile": False, "channels_last": False}
    call, facts = ours.build(settings, "gpt_step", torch.zeros(2, 4, dtype=torch.int64))
    assert asked == [(ours.Execution("auto", "auto", "auto"), 50_000)]
    assert facts["dtype"] == "bf16" and facts["channels_last"] and not facts["compile"]
    assert call().isfinite()


def test_operations_of_a_step(ours: ModuleType) -> None:
    settings: dict[str, Any] = {"codebook_size": 16, "num_layers": 2, "num_heads": 2}
    settings |= {"embed_dim": 8, "num_tokens": 9, "guidance_scale": 1.0, "auto": False}
    settings |= {"device": "cpu", "dtype": "float32", "compile": False, "channels_last": False}
    call, _ = ours.build(settings, "gpt_step", torch.zeros(2, 9, dtype=torch.int64))
    d, v, n, layers, b = 8, 16, 9, 2, 2
    # a multiplication and an addition for each weight of a matrix and token, in three passes;
    # QKᵀ and softmax·V, and backwards the four products of their gradients and QKᵀ again
    matrices = 3 * 2 * b * n * (layers * 12 * d * d + d * v)
    assert matrices <= count_flops(call) <= matrices + layers * b * 2 * n * n * d * (2 + 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "measured"),
    [
        (autoencoder, TINY_AUTOENCODER, 4 + 3),
        (transformer, [*TINY_TRANSFORMER, "--measurements", "gpt_step", "sample"], 2 * 2),
    ],
)
def test_real_peers(
    script: ModuleType, arguments: list[str], measured: int, tmp_path: Path
) -> None:
    if not PEER_PYTHON.is_file():
        pytest.skip(f"needs the peers' environment at {PEER_PYTHON}")
    options = [f"--peer-python={PEER_PYTHON}", f"--output={tmp_path / 'lines.jsonl'}"]
    records = run(script, *arguments, *options)
    assert sum(r["peer"] is not None for r in records) == measured  # of the same architecture


def test_presets_have_the_published_sizes(
    ours: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "step_of", lambda *arguments: None)  # built, not run
    settings = {"device": "cpu", "dtype": "float32", "compile": False, "channels_last": False}

    def parameters(case: dict[str, Any], measurement: str) -> dict[str, int]:
        with torch.device("meta"):
            inputs = torch.zeros(case["batch_size"], case.get("num_tokens", 1), dtype=torch.int64)
            return ours.build({**settings, **case}, measurement, inputs)[1]["parameters"]

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


def test_startup(capsys: pytest.CaptureFixture[str]) -> None:
    startup.main(["--rounds=1", "--commands", "help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["taming", "s"]
    assert lines[2].startswith("help  ")
