"""Sweeps by Hydra: runs below one directory, recipes in a table, Optuna, clusters."""

import importlib.util
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from PIL import Image
from tiny_commands import Run, composed, fails, succeeds

from taming.cli.build import build
from taming.cli.mistakes import config_directory

RECIPES = sorted(path.stem for path in (config_directory() / "recipe").glob("*.yaml"))
TINY = ("size=tiny", "data.val_fraction=0.25", "perceptual=none", "logger=csv", "report=false",
    "trainer.max_steps=2", "run_dir=sweep")  # fmt: skip


def test_each_job_of_a_sweep_is_a_run_of_its_own(run: Run, images: Path, tmp_path: Path) -> None:
    sweep = ("-m", f"--config-dir={tmp_path}", "+recipe=ours,esser2021")
    succeeds(run("train_vqgan", *sweep, f"data.path={images}", *TINY))
    runs = sorted(path.parent for path in (tmp_path / "sweep").glob("*/result.json"))
    assert [path.name for path in runs] == ["0_+recipe-ours", "1_+recipe-esser2021"]
    configs = [OmegaConf.load(path / "config.yaml") for path in runs]
    assert [config.callbacks.average.decay for config in configs] == [0.99, None]
    assert [config.run_dir for config in configs] == [f"sweep/{path.name}" for path in runs]
    resumed = run("train_vqgan", f"resume=sweep/{runs[1].name}", "trainer.max_steps=3")
    assert "3 steps done" in resumed.out, resumed.err


def test_runs_that_differ_in_their_seed_alone_make_a_row(run: Run, tmp_path: Path) -> None:
    names = ["+recipe-ours_seed-0", "+recipe-ours_seed-1", "+recipe-esser2021_seed-0"]
    for number, (name, psnr) in enumerate(zip(names, (20.0, 21.5, 15.25), strict=True)):
        folder = tmp_path / "sweep" / f"{number}_{name}"
        (folder / "grids").mkdir(parents=True)
        metrics = {"val/psnr": psnr} | ({"val/ssim": 0.5} if number else {})
        (folder / "result.json").write_text(json.dumps({"metrics": metrics}))
        for step in (1, 2):  # the last is shown
            picture = Image.new("RGB", (10 * step, 30))
            picture.save(folder / "grids" / f"reconstructions_{step:07d}.png")
    succeeds(run("compare", "runs=sweep"))  # the numbers that all have
    assert (tmp_path / "sweep" / "table.md").read_text().splitlines() == [
        "|                  | psnr            |",
        "| ---------------- | --------------- |",
        "| recipe-ours      | 20.75 (20–21.5) |",
        "| recipe-esser2021 | 15.25           |",
    ]
    with Image.open(tmp_path / "sweep" / "grids.png") as grids:
        assert grids.size == (20 + 8 + 20, 30)
    succeeds(run("compare", "runs=sweep/2_+recipe-esser2021_seed-0", "columns=[ssim]"))
    fails(run("compare", "runs=sweep", "columns=[psnr,ssim]"), "has no 'ssim'; it has psnr")
    fails(run("compare", "runs=[sweep,sweep]"), "runs must be one folder", "Use report for several")
    fails(run("compare", "runs=sweep/0_+recipe-ours_seed-0/grids"), "holds no finished runs")


@pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="optuna is not installed")
@pytest.mark.filterwarnings("ignore")  # Optuna's
def test_optuna_looks_for_the_best_setting(run: Run, images: Path, tmp_path: Path) -> None:
    trials = ("+sweep=optuna", "hydra.sweeper.n_trials=2")
    succeeds(run("train_vqgan", *trials, f"data.path={images}", *TINY))
    best = OmegaConf.load(tmp_path / "sweep" / "optimization_results.yaml")
    results = [json.loads(p.read_text()) for p in (tmp_path / "sweep").glob("*/result.json")]
    assert len(results) == 2
    losses = [result["metrics"]["val/reconstruction_loss"] for result in results]
    assert best.best_value == pytest.approx(min(losses))
    assert 1e-4 <= best.best_params["training.optimizer.learning_rate"] <= 2e-3


@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="submitit is not installed")
def test_a_cluster_is_asked_for_what_the_file_says() -> None:
    config = composed("train_vqgan", "+launcher=submitit", return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith("SlurmLauncher")
    assert config.hydra.launcher.timeout_min == 1440
    assert config.hydra.mode.name == "MULTIRUN"


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_differ_in_nothing_but_the_recipe(recipe: str) -> None:
    overrides = (
        "experiment=comparison",
        f"+recipe={recipe}",
        "data.path=x",
        "perceptual.weights=y",
    )
    config = composed("train_vqgan", *overrides)
    vqgan = build(config.model)
    assert (vqgan.codebook_size, vqgan.grid_size) == (1024, (8, 8))
    assert build(config.adversary).start == 0.25
    assert config.metrics.frechet.features.weights == "y"
