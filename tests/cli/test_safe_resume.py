"""A stranger's run directory runs nothing: every attempt here would leave a file, `marker`."""

import os
import pickle
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from tiny_commands import Run, fails, resumed, succeeds

from taming.cli.data import open_data_of_run
from taming.cli.mistakes import config_directory
from taming.runtime.errors import UserError

TOUCH = "__import__('os').mkdir('marker')"


class Pickled:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("marker",)


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that leave the marker when they are loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("trap.pkl").write_bytes(pickle.dumps(Pickled()))
    for name in ("trap.py", "hubconf.py"):
        Path(name).write_text(f"{TOUCH}\ndef model(*a): ...\n")
    torch.save(Pickled(), "trap.pt")


def call(target: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": target, **arguments}


CALLS = {
    "joblib": call("joblib.load", filename="trap.pkl"),
    "torch": call("torch.load", f="trap.pt", weights_only=False),
    "numpy": call("numpy.load", file="trap.pkl", allow_pickle=True),
    "hub": call("torch.hub.load", repo_or_dir=".", model="model", source="local"),
    "ours": call("taming.cli.demo.run_command", script=f"') or {TOUCH} or print('"),
    "through ours": call("taming.cli.command.os.system", command="touch marker"),
    "the import alone": call("trap.model"),
    "call": call("hydra.utils.call", config=call("runpy.run_path", path_name="trap.py")),
    "instantiate": call("hydra.utils.instantiate", _args_=[{"_target_": "trap.model"}]),
    "partial": call("functools.partial", _args_=["trap.model"]),
    "partially": call("runpy.run_path", path_name="trap.py", _partial_=True),
    "in a list": [[{"more": call("runpy.run_path", path_name="trap.py")}]],
    "referred to": call("${attempt.name}", name="runpy.run_path", path_name="trap.py"),
    "put together": call("${attempt.a}py.run_path", a="run", path_name="trap.py"),
    "decoded": "${oc.decode:'{_target_: trap.model}'}",
    "created": "${oc.create:'{_target_: trap.model}'}",
}


@pytest.mark.usefixtures("traps")
@pytest.mark.parametrize("name", CALLS)
def test_a_saved_configuration_calls_nothing(name: str) -> None:
    attempt = CALLS[name]
    for saved in (
        {"logger": attempt},
        {"callbacks": {"one": {"_target_": "taming.training.VQGANTraining", "x": [attempt]}}},
    ):
        saved = OmegaConf.create({"attempt": attempt, **saved})
        OmegaConf.save(saved, "config_composed.yaml")
        with pytest.raises(UserError, match=r"is not run|outside the file"):
            resumed(Path())
        assert not Path("marker").exists()


@pytest.mark.usefixtures("traps")
@pytest.mark.parametrize("data", ["${evil}", {"source": "${evil}"}, {"more": ["${evil}"]}])
def test_a_report_calls_nothing_that_its_data_refer_to(data: Any) -> None:
    OmegaConf.save(OmegaConf.create({"data": data, "evil": call("trap.model")}), "config.yaml")
    with pytest.raises(UserError, match=r"data.*_target_=trap\.model, which does not belong"):
        open_data_of_run(OmegaConf.create(), Path())
    assert not Path("marker").exists()


@pytest.mark.usefixtures("traps")
@pytest.mark.parametrize("name", ["joblib", "torch", "the import alone"])
def test_the_traps_work(name: str) -> None:
    """Otherwise the test above would show nothing."""
    hydra.utils.instantiate(OmegaConf.create(CALLS[name]))
    assert Path("marker").exists()


@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "a ${oc.env:HOME}", "${oc.${name}:HOME}", "${${name}:HOME}",
     r"\${oc.env:HOME}", "$${brace}", "${oc.select:name}", "${hydra:runtime.cwd}",
     "${now:${oc.env:HOME}}", "${ oc.env : HOME }", "${oc.deprecated:name}",
     "${list.${oc.env:HOME}}", "${a.${name}:HOME}"],
)  # fmt: skip
def test_a_saved_configuration_looks_at_nothing_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config_composed.yaml"
    path.write_text(f"name: env\nbrace: '{{oc.env:HOME}}'\nlist: [{{deep: '{text}'}}]\n")
    with pytest.raises(UserError, match=r"list.0.deep=.* refers to something outside the file"):
        resumed(tmp_path)


CHECKPOINT = call("lightning.pytorch.callbacks.ModelCheckpoint")
TENSORBOARD = call("lightning.pytorch.loggers.TensorBoardLogger")
LEADING_OUT = {
    "absolute": {"callbacks": {"best": {**CHECKPOINT, "dirpath": "{outside}"}}},
    "up": {"callbacks": {"best": {**CHECKPOINT, "dirpath": "${run_dir}/checkpoints/../../x"}}},
    "relative": {"callbacks": {"best": {**CHECKPOINT, "dirpath": "photos"}}},
    "home": {"callbacks": {"best": {**CHECKPOINT, "dirpath": "~/photos"}}},
    "address": {"callbacks": {"best": {**CHECKPOINT, "dirpath": "${run_dir}/file://x"}}},
    "referred to": {
        "callbacks": "${other}",
        "other": {"b.c": {**CHECKPOINT, "dirpath": "${..place}"}, "place": "{outside}"},
    },
    "in a list": {"trainer": {"plugins": [{"dirpath": "{outside}"}]}},
    "without a name": {"callbacks": {"best": {**CHECKPOINT, "_args_": ["{outside}"]}}},
    "by default": {"trainer": {"default_root_dir": "{outside}"}},
    "file": {"callbacks": {"best": {**CHECKPOINT, "filename": "../../../photos/best"}}},
    "absolute file": {"callbacks": {"best": {**CHECKPOINT, "filename": "{outside}/best"}}},
    "field": {"callbacks": {"best": {**CHECKPOINT, "filename": "{/photos/best}"}}},
    "letters": {"callbacks": {"best": {**CHECKPOINT, "filename": "{step:c}{step:c}/best"}}},
    "grids": {
        "callbacks": {"grids": call("taming.training.SampleGrids", dirpath="{outside}")}
    },
    "logger": {"logger": {"tensorboard": {**TENSORBOARD, "save_dir": "{outside}"}}},
    "version": {"logger": {"tensorboard": {**TENSORBOARD, "save_dir": "x", "version": "../.."}}},
    "wandb": {"logger": {"wandb": call("taming.training.wandb_logger", dir="{outside}")}},
    "command": {
        "logger": {"evil": call("taming.data.shards.make_shards", output_dir="{outside}")}
    },
}  # fmt: skip


def replaced(value: Any, outside: str) -> Any:
    if isinstance(value, dict):
        return {key: replaced(inner, outside) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, outside) for inner in value]
    return value.replace("{outside}", outside) if isinstance(value, str) else value


@pytest.mark.parametrize("name", LEADING_OUT)
def test_a_saved_configuration_writes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = OmegaConf.create({"run_dir": "/", **replaced(LEADING_OUT[name], f"{tmp_path}/photos")})
    (tmp_path / "run").mkdir()
    OmegaConf.save(saved, "run/config_composed.yaml")
    with pytest.raises(UserError, match=r"leads out of the run directory|_args_.* is not run"):
        resumed(Path("run"))


def test_names_and_places_in_the_run_are_accepted(tmp_path: Path) -> None:
    files = ("{epoch}-{val/loss:.2f}", "step={step:07d}", "best", "a/b", "..x", "it's 5: x")
    places = ("${run_dir}/checkpoints", "${run_dir}", f"{tmp_path}/x/../y")
    saved = {
        "callbacks": {str(n): {**CHECKPOINT, "filename": file} for n, file in enumerate(files)},
        "grids": [{"dirpath": place} for place in places],
        "logger": {"wandb": call("taming.training.wandb_logger", name="flowers: 64/new")},
    }
    OmegaConf.save(OmegaConf.create(saved), tmp_path / "config_composed.yaml")
    assert resumed(tmp_path).callbacks["0"].filename == files[0]


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['touch marker']", "[", "- a"])
def test_a_file_that_holds_no_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config_composed.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"cannot be read|is not a configuration file"):
        resumed(tmp_path)


@pytest.mark.usefixtures("traps")
def test_by_the_command(run: Run, vqgan_run: Path) -> None:
    path = vqgan_run / "config_composed.yaml"
    good = OmegaConf.load(path)
    OmegaConf.save(OmegaConf.merge(good, {"logger": call("trap.model")}), path)
    resume = ("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3")
    fails(run(*resume), "logger._target_=trap.model", "+logger._target_=trap.model")
    assert not Path("marker").exists()
    # weights that are not only weights
    trap = call("taming.losses.FeatureLoss", weights="trap.pt")
    OmegaConf.save(OmegaConf.merge(good, {"perceptual": trap}), path)
    assert run(*resume).status != 0
    assert not Path("marker").exists()
    # texts that are not only settings
    good.transformer_settings = ["x; touch marker", "$(touch marker)"]
    OmegaConf.save(good, path)
    printed = succeeds(run(*resume)).out.strip().splitlines()[-1]
    assert "'x; touch marker' '$(touch marker)'" in printed
    assert os.system(f"true {printed}") == 0
    assert not Path("marker").exists()


def test_a_place_outside_the_run_by_the_command(run: Run, vqgan_run: Path) -> None:
    path, photos = vqgan_run / "config_composed.yaml", Path("photos")
    photos.mkdir()
    (photos / "best.ckpt").write_text("precious")
    config = OmegaConf.load(path)
    config.callbacks.best.dirpath = str(photos.absolute())
    OmegaConf.save(config, path)
    place = f"callbacks.best.dirpath={photos.absolute()}"
    resume = ("train_vqgan", f"resume={vqgan_run}", "trainer.max_steps=3")
    fails(run(*resume), place, "leads out of the run directory", f"add ++{place} to the command")
    assert (photos / "best.ckpt").read_text() == "precious"
    succeeds(run(*resume, f"++{place}"))
    assert (photos / "best.ckpt").read_bytes() != b"precious"


@pytest.mark.parametrize("name", ["checkpoints", "metrics.csv", "grids/new.png", "own/x"])
def test_a_link_out_of_the_run_by_the_command(run: Run, vqgan_run: Path, name: str) -> None:
    outside, link = Path("outside"), vqgan_run / name
    outside.mkdir()
    if link.exists():
        link.rename(outside / "target")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to((outside / "target").absolute())
    before = list(outside.rglob("*"))
    Path("photos").mkdir()
    for settings in ([f"resume={vqgan_run}"], [f"run_dir={vqgan_run}", "data.path=photos"]):
        outcome = run("train_vqgan", *settings, "trainer.max_steps=3")
        fails(outcome, f"{name} is a link to", "To keep a run on another disk, move the whole")
    assert list(outside.rglob("*")) == before


def test_links_within_a_run_and_to_a_run(run: Run, vqgan_run: Path) -> None:
    (vqgan_run / "checkpoints").rename(vqgan_run / "elsewhere")
    (vqgan_run / "checkpoints").symlink_to("elsewhere")
    (vqgan_run / "wandb").mkdir()
    (vqgan_run / "wandb" / "debug-core.log").symlink_to("/var/log/core.log")
    Path("link").symlink_to(vqgan_run)
    succeeds(run("train_vqgan", "resume=link", "trainer.max_steps=3"))


@pytest.mark.usefixtures("traps")
def test_what_this_command_line_names_is_trusted(run: Run, vqgan_run: Path) -> None:
    mine, resume = "callbacks.saving._target_=trap.model", ("train_vqgan", f"resume={vqgan_run}")
    succeeds(run(*resume, "trainer.max_steps=3", mine))
    fails(run(*resume, "trainer.max_steps=4"), f"trust it, add ++{mine}")
    succeeds(run(*resume, "trainer.max_steps=4", f"++{mine}"))


def test_what_our_own_runs_save_is_accepted(tmp_path: Path) -> None:
    """Of every option of every group, so that no run is refused."""
    shared = ("base", "encoding", "sampling")
    of_other_commands = [
        path
        for path in config_directory().glob("*.yaml")
        if path.stem not in shared and not path.stem.startswith("train_")
    ]
    for path in set(config_directory().rglob("*.yaml")) - set(of_other_commands):
        config = OmegaConf.load(path)
        for key in ("defaults", "hydra"):  # which no run saves
            config.pop(key, None)
        config.nested = {"which": "label_map", "label_map": 5, "read": "${.${nested.which}}"}
        OmegaConf.save(config, tmp_path / "config_composed.yaml")
        assert resumed(tmp_path).nested.read == 5
