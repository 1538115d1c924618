"""What runs leave for Weights & Biases, read back from the files of offline runs; its sweeps."""

from pathlib import Path

import pytest
import wandb_file
from omegaconf import OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, composed, succeeds

from taming.cli.mistakes import config_directory


def offline_files(run_dir: str) -> list[Path]:
    return sorted(Path(run_dir, "wandb").glob("offline-run-*/run-*.wandb"))


def test_artifacts_join_the_stages_and_a_resume_goes_on_in_the_same_run(
    run: Run, folder_overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    tracked = ("logger=wandb", "logger.wandb.artifacts=true")
    stage_1 = (*folder_overrides, *TINY_VQGAN, "perceptual=none", *tracked, "run_dir=vqgan")
    succeeds(run("train_vqgan", *stage_1))
    succeeds(run("train_vqgan", "resume=vqgan", "trainer.max_steps=4"))
    first, second = offline_files("vqgan")
    assert wandb_file.run_id(first) == wandb_file.run_id(second)
    steps = [wandb_file.column(file, "trainer/global_step")[-1] for file in (first, second)]
    assert steps == [2, 4]
    (data, tokenizer) = wandb_file.artifacts(second)
    assert (data[0], tokenizer[0]) == ("dataset", "tokenizer")
    assert wandb_file.inputs(second) == [data[1]]
    assert wandb_file.artifacts(first)[0] == data
    assert wandb_file.artifacts(first)[1] != tokenizer  # two more steps make another one

    stage_2 = ("vqgan=vqgan", *folder_overrides, *TINY_TRANSFORMER, *tracked, "run_dir=gpt")
    succeeds(run("train_transformer", *stage_2))
    (file,) = offline_files("gpt")
    artifacts = wandb_file.artifacts(file)
    assert [artifact[0] for artifact in artifacts] == [
        "dataset",
        "tokenizer",
        "tokens",
        "generator",
    ]
    assert wandb_file.inputs(file) == [name for _, name, _ in artifacts[:-1]]
    # equal names and contents join the runs
    assert artifacts[:2] == [data, tokenizer]


def test_without_the_switch_there_are_no_artifacts(run: Run, vqgan_run: Path) -> None:
    succeeds(run("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3", "logger=wandb"))
    (file,) = offline_files(str(vqgan_run))
    assert wandb_file.artifacts(file) == []
    assert wandb_file.column(file, "val/psnr")


@pytest.mark.parametrize("stage", ["train_vqgan", "train_transformer"])
def test_sweep_files_sweep_over_settings_that_there_are(stage: str) -> None:
    path = config_directory() / "sweep" / "wandb" / f"{stage}.yaml"
    sweep = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(sweep, dict)
    assert sweep["program"] == f"scripts/{stage}.py"
    overrides = []
    for name, choice in sweep["parameters"].items():
        for value in choice.get("values", [choice.get("value", choice.get("min"))]):
            overrides.append(f"{name}={value}")
    last = {override.split("=")[0]: override for override in overrides}
    overrides = [*last.values(), sweep["command"][-1]]
    config = composed(stage, *overrides)
    assert config.logger.wandb.mode == "online"
    assert OmegaConf.select(config, "callbacks.best.monitor") == sweep["metric"]["name"]
    assert sweep["command"][:4] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]
