"""What a command names as the next one can be pasted as it stands."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Outcome, Run, composed, succeeds
from tiny_images import write_images, write_pairs

from taming.cli.next_command import condition_settings, data_of_run, data_settings, setting
from taming.cli.saved_config import config_of_run


def pasted(outcome: Outcome) -> list[str]:
    """The command in the last line, as the shell gives it to Python: script and arguments."""
    line = succeeds(outcome).out.rstrip().splitlines()[-1]
    python, script, *arguments = shlex.split(line)
    assert (python, script[:8]) == ("python", "scripts/"), line
    return [script.removeprefix("scripts/").removesuffix(".py"), *arguments]


@pytest.mark.parametrize(
    "value",
    ["images", "~/my images", "a,b=c.zip", 'say "hi"', "it's", r"C:\new\x", "ends\\", r"a\"b", "ü",
     "null", "True", "2024", "1e3", "", " a", "-a",
     7, 0.5, 1e-5, True, None, [1, 2], ["a b", None]],
)  # fmt: skip
def test_a_setting_is_read_as_it_was(value: object) -> None:
    (argument,) = shlex.split(setting("data.path", value))
    override = OverridesParser.create().parse_override(argument)
    assert override.value() == value
    assert type(override.value()) is type(value)


def data(*overrides: str) -> DictConfig:
    return composed("train_vqgan", *overrides).data


def test_data_are_named_by_what_is_not_default() -> None:
    assert data_settings(data("data.path=x")) == ["data.path=x"]
    config = data("experiment=flowers64", 'data.path="x y"', "data.val_path=z", "seed=4")
    overrides = data_settings(config)
    assert "'data.path=\"x y\"'" in overrides and "data.val_path=z" in overrides
    assert not any(name.split("=")[0] in ("data", "data.resolution", "seed") for name in overrides)
    assert data_settings(data("data=digits")) == ["data=digits"]
    assert data_settings(data("data=cifar10", "data.root=d")) == ["data=cifar10", "data.root=d"]


def test_conditions_are_named_as_sample_takes_them() -> None:
    maps = data("data=paired", "data.path=x", "data.source.condition_folder=map")
    assert condition_settings(maps) == ["conditions.path=x", "conditions.subfolder=map"]
    depths = data("data=paired", "data.path=x", "data.val_path=v", "data.condition=image")
    assert condition_settings(depths) == ["conditions.path=v", "conditions.subfolder=label"]


def test_from_images_to_samples_by_pasting(run: Run, tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        write_images(tmp_path / "my images, few" / name, 8)
    outcome = run(
        "train_vqgan", 'data.path="my images, few"', "data.val_fraction=0.25", *TINY_VQGAN,
        "data.resolution=16", "perceptual=none", 'run_dir="run=1"',
    )  # fmt: skip
    of_data = ['data.path="my images, few"', "data.val_fraction=0.25"]
    command = pasted(outcome)
    assert command == ["train_transformer", 'vqgan="run=1"', *of_data]
    command = pasted(run(*command, *TINY_TRANSFORMER, "run_dir=stage 2"))
    assert command == ["sample", 'checkpoint="stage 2"']
    assert pasted(run(*command, "num_images=2")) == ["evaluate", 'checkpoint="stage 2"', *of_data]


def test_data_of_a_run_are_named_with_a_size_of_their_own(tmp_path: Path) -> None:
    of_tokenizer = (32, 32)
    assert data_of_run(str(tmp_path), of_tokenizer) == ["data.path=MY_IMAGES"]
    for size, named in ((32, []), ([32, 32], []), (64, ["data.resolution=64"])):
        config = data("data=cifar10", f"data.resolution={size}")
        plain = OmegaConf.to_container(config, resolve=True)
        OmegaConf.save(OmegaConf.create({"data": plain}), tmp_path / "config.yaml")
        assert data_of_run(str(tmp_path), of_tokenizer) == ["data=cifar10", *named]


def test_the_run_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs have a config.yaml, too."""
    monkeypatch.chdir(tmp_path)
    OmegaConf.save({"data": "of another program"}, "config.yaml")
    for path in ("models/mine", "mine", "hf:owner/name"):
        assert config_of_run(path) == {}
    Path("run").mkdir()
    OmegaConf.save({"seed": 1}, "run/config.yaml")
    for path in ("", "/model", "/model/tokenizer", "/checkpoints/last.ckpt"):
        assert config_of_run(f"run{path}") == {"seed": 1}


def test_conditions_by_pasting_and_their_resume(run: Run, vqgan_run: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "scenes", 8)
    overrides = (
        f"vqgan={vqgan_run}", "data=paired", "data.path=scenes", "data.num_classes=4",
        "data.val_fraction=0.25", "data.label_map.unlabelled=null", "data.loader.num_workers=0",
    )  # fmt: skip
    command = pasted(run("encode_dataset", *overrides, "device=cpu"))
    assert command == ["train_transformer", *overrides]
    command = pasted(run(*command, *TINY_TRANSFORMER, "run_dir=painter"))
    assert command[0] == "sample"
    assert {"conditions.path=scenes", "conditions.subfolder=label"} < set(command)
    assert pasted(run("train_transformer", "resume=painter", "trainer.max_steps=3")) == command
    succeeds(run(*command, "num_images=2"))
