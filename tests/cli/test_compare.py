"""The command that compares recipes: what it runs, and its table. The runs themselves are faked."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from PIL import Image
from tiny_commands import Run

from taming.cli import compare
from taming.cli.app import build, config_directory
from taming.quantizers import build_quantizer

COMPARISONS = sorted(path.stem for path in (config_directory() / "comparison").glob("*.yaml"))


class FakeRuns:
    """Stands in for the training command."""

    def __init__(self) -> None:
        self.calls: list[dict[str, str]] = []

    def __call__(self, script: str, *overrides: str) -> None:
        assert script == "train_vqgan"
        values = dict(override.split("=", 1) for override in overrides)
        self.calls.append(values)
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        run = Path(str(parsed[-1].value()))
        (run / "grids").mkdir()
        Image.new("RGB", (10, 20)).save(run / "grids" / "reconstructions_0000005.png")
        seed = float(values["seed"])
        names = ("psnr", "ssim", "frechet_distance", "codebook_usage", "codebook_perplexity")
        metrics = {f"val/{name}": 10 * number + seed for number, name in enumerate(names)}
        (run / "result.json").write_text(
            json.dumps({"step": 5, "interrupted": False, "metrics": metrics})
        )


def test_every_variant_runs_with_every_seed_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = FakeRuns()
    monkeypatch.setattr(compare, "run_command", runs)
    arguments = (
        "compare", "path=p.zip", "weights=w.pth", "max_steps=5", "output_dir=out", "seeds=[3,4]",
        'overrides=["size=tiny"]',
    )  # fmt: skip
    outcome = run(*arguments)
    assert outcome.status == 0, outcome.err
    assert len(runs.calls) == 6
    assert [call["seed"] for call in runs.calls] == ["3", "4"] * 3
    assert {call["trainer.max_steps"] for call in runs.calls} == {"5"}
    assert {call["size"] for call in runs.calls} == {"tiny"}
    assert runs.calls[0]["data.path"] == "p.zip"
    assert runs.calls[0]["training.ema_decay"] == "0.99"
    assert runs.calls[2]["training.ema_decay"] == "null"
    assert runs.calls[2]["training.optimizer.learning_rate"] == "1.44e-4"
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| ours | 3.5 (3–4) | 13.5 (13–14) | 23.5 (23–24) |" in table
    assert table in outcome.out
    with Image.open(tmp_path / "out" / "grids.png") as picture:
        assert picture.size == (3 * 10 + 2 * 8, 20)
    again = run(*arguments)
    assert again.status == 0
    assert len(runs.calls) == 6  # nothing is done twice
    other = run(*arguments[:3], "max_steps=6", *arguments[4:])  # nor taken for something else
    assert other.status == 2
    assert "ours_seed3 is of other settings" in other.err
    result = tmp_path / "out" / "ours_seed3" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "interrupted": True}))
    assert run(*arguments).status == 0  # broken off: done again
    assert len(runs.calls) == 7
    result.unlink()  # killed: done again
    assert run(*arguments).status == 0
    assert len(runs.calls) == 8
    unknown = run(*arguments, "columns=[psnr,fid]")
    assert unknown.status == 2
    assert "has no 'fid'; it has psnr, ssim" in unknown.err


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_every_variant_composes(comparison: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        given = ["path=x", "weights=y", f"comparison={comparison}"]
        config = OmegaConf.to_container(compose("compare", [*given, "output_dir=o"]), resolve=True)
        assert isinstance(config, dict)
        sizes = set()
        for variant in config["variants"].values():
            overrides = [
                *config["common"],
                "data.path=x",
                *config["recipes"][variant["recipe"]],
                *variant.get("overrides", []),
            ]
            composed = compose("train_vqgan", overrides)
            quantizer = OmegaConf.to_container(composed.model.quantizer, resolve=True)
            assert isinstance(quantizer, dict)
            sizes.add(build_quantizer({str(k): v for k, v in quantizer.items()}).codebook_size)
            assert build(composed.model).grid_size == (8, 8)
            assert build(composed.adversary, max_steps=600).start == 150
        assert sizes == {1024}


def test_any_path_reaches_the_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = FakeRuns()
    monkeypatch.setattr(compare, "run_command", runs)
    path = r"it's (2), a=b\c"
    escaped = path.replace("'", "\\'")
    outcome = run(
        "compare", f"path='{escaped}'", "weights=w", "seeds=[0]", "output_dir='~/of (2), a=b'"
    )
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "of (2), a=b" / "ours_seed0" / "result.json").exists()
    (parsed,) = OverridesParser.create().parse_overrides(
        [f"data.path={runs.calls[0]['data.path']}"]
    )
    assert parsed.value() == path


def test_an_unknown_recipe_is_named(run: Run) -> None:
    outcome = run("compare", "path=x", "weights=y", "variants.ours.recipe=mine")
    assert outcome.status == 2
    assert "recipe 'mine' is not among recipes: ours, recipe_2021" in outcome.err
