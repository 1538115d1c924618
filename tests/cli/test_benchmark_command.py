"""The benchmark as a command, made small, without its peers."""

import json
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from tiny_commands import TINY_BENCHMARK, Run

from taming.cli.app import config_directory
from taming.cli.benchmark import make_training, make_transformer_training
from taming.workflows.benchmark import AutoencoderCase, TransformerCase
from taming.workflows.benchmark.our_autoencoder import count_autoencoder_parameters
from taming.workflows.benchmark.our_transformer import count_transformer_parameters


def test_ours_alone(run: Run, tmp_path: Path) -> None:
    outcome = run("benchmark", *TINY_BENCHMARK, "output=speed/lines.jsonl")
    assert outcome.status == 0, outcome.err
    assert "compvis is left out: there is no Python at .venv-peers/bin/python" in outcome.err
    lines = (tmp_path / "speed" / "lines.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["measurement"] for r in records] == [
        "step",
        "step_before_start",
        "autoencoder_step",
        "encode",
        "decode",
    ]
    assert all(r["case"]["name"] == "ch32" and r["peer"] is None for r in records)
    assert all(len(r["ours"]["seconds"]["rounds"]) == 1 for r in records)
    assert "training step before its start" in outcome.out
    assert "ch32: images 2×3×16×16" in outcome.out


def test_the_transformer_alone(run: Run, tmp_path: Path) -> None:
    tiny = [f"cases.{name}.num_layers=1" for name in ("sample_2", "step_2")]
    tiny += [f"cases.{name}.num_tokens=8" for name in ("sample_2", "step_2")]
    outcome = run(
        "benchmark",
        "preset=cpu_transformer",
        "device=cpu",
        "threads=1",
        "rounds=1",
        "warmup=0",
        "turn_seconds=0",
        "measurements=[gpt_step,sample]",
        "~cases.sample_16",
        "~cases.step_8",
        *tiny,
        "output=lines.jsonl",
    )
    assert outcome.status == 0, outcome.err
    records = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [(r["case"]["name"], r["measurement"]) for r in records] == [
        ("sample_2", "sample"),
        ("step_2", "gpt_step"),
    ]
    assert all(r["ours"]["tokens_per_second"] > 0 for r in records)
    assert "sample_2: tokens 2×8; parameters" in outcome.out
    assert outcome.err.count("generate is left out") == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cases.ch32.resolution=15", "does not divide"),
        ("cases.ch32.kind=gan", "cases.ch32.kind is one of autoencoder, transformer, not 'gan'"),
        ("measurements=[sample]", "nothing to time"),
        ("dtype=half", "float32 or bf16"),
        ("+cases.ch32.depth=2", "depth"),
        ("+peers.compvis.pyton=x", "pyton"),
        ("device=abacus", "device=abacus is not available"),
    ],
)
def test_errors(run: Run, override: str, said: str) -> None:
    outcome = run("benchmark", *TINY_BENCHMARK, override)
    assert outcome.status == 2
    assert said in outcome.err


@pytest.mark.parametrize(("preset", "case"), [("cpu", "f16"), ("gpu", "f16"), ("cpu", "ch32")])
def test_presets_build_at_full_size(preset: str, case: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("benchmark", [f"preset={preset}", "compile=false", "channels_last=false"])
    values = {k: v for k, v in config.cases[case].items() if k != "kind"}
    architecture = AutoencoderCase(name=case, **values)
    with torch.device("meta"):
        module = make_training(config, architecture, None)
        counts = count_autoencoder_parameters(module)
    if case == "f16":
        # the published size, and its codebook
        assert counts == {"autoencoder": 71_879_555 + 1024 * 256}
    assert module.vqgan.downsample_factor == (16 if case == "f16" else 4)
    assert config.settings.dtype == ("bf16" if preset == "gpu" else "float32")


@pytest.mark.parametrize(
    ("preset", "size"),
    [
        # 12 d² + 13 d in each block, two tables of codes, positions, the last norm
        ("cpu_transformer", 8 * (12 * 512**2 + 13 * 512) + (2 * 1024 + 256 + 2) * 512),
        ("cpu_sequence_length", None),
        ("gpu_transformer", 24 * (12 * 1024**2 + 13 * 1024) + (2 * 16384 + 256 + 2) * 1024),
        ("gpu_sequence_length", None),
    ],
)
def test_transformer_presets_build_at_full_size(preset: str, size: int | None) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("benchmark", [f"preset={preset}", "compile=false"])
    lengths = set()
    for name, values in config.cases.items():
        case = TransformerCase(name=name, **{k: v for k, v in values.items() if k != "kind"})
        with torch.device("meta"):
            module = make_transformer_training(config, case)
        counts = count_transformer_parameters(module.transformer)
        assert size in (None, sum(counts.values()) - counts["prefix"])
        assert counts["prefix"] == case.embed_dim * (2 if case.with_guidance else 1)
        lengths.add(case.num_tokens)
    assert lengths == ({256} if preset.endswith("transformer") else {256, 1024, 4096})
