"""Mistakes in the command line are told before PyTorch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_commands import Run, without_python_settings

from taming.cli.mistakes import check_command_line
from taming.cli.start import start
from taming.errors import MissingPathError, UserError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize(
    ("script", "overrides", "parts"),
    [
        ("train_vqgan", ["data.pat=x"], ["no setting data.pat", "Did you mean data.path"]),
        ("train_transformer", ["data.path=x"], ["must be given: vqgan"]),
        ("sample", ["checkpoint=nowhere"], ["checkpoint=nowhere does not exist"]),
    ],
)
def test_without_heavy_imports(
    tmp_path: Path, script: str, overrides: list[str], parts: list[str]
) -> None:
    for package in ("torch", "lightning", "torchvision"):
        (tmp_path / f"{package}.py").write_text("raise RuntimeError('imported too early')")
    outcome = subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *overrides],
        env={**without_python_settings(), "PYTHONPATH": f"{tmp_path}:{SCRIPTS.parent}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 2, outcome.stderr
    assert outcome.stderr.startswith("error: ")
    for part in parts:
        assert part in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_what_is_right_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    check_command_line("train_vqgan", ["data.path=x", "perceptual=none"])
    check_command_line("train_vqgan", ["experiment=digits"])
    check_command_line("train_vqgan", ["resume=x"])  # the run's configuration has a data.path
    check_command_line("train_transformer", ["data.path=x", "vqgan=hf:owner/name"])
    check_command_line("train_vqgan", ["data.path=${hydra:runtime.cwd}/x", "perceptual=none"])
    check_command_line("train_vqgan", ["data.path=x", "perceptual=none", "size=tiny"])
    check_command_line("demo", [])


def test_paths_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name, overrides in (
        ("train_vqgan", ["resume=nowhere"]),
        ("train_vqgan", ["data.path=x", "data.val_path=nowhere"]),
        ("train_vqgan", ["data.path=x", "perceptual=features", "perceptual.weights=nowhere"]),
        ("train_transformer", ["data.path=x", "vqgan=nowhere"]),
        ("sample", ["checkpoint=x", "conditions.path=nowhere"]),
        ("reconstruct", ["checkpoint=x", "input=nowhere"]),
    ):
        with pytest.raises(MissingPathError, match=f"{overrides[-1]} does not exist"):
            check_command_line(name, overrides)
    with pytest.raises(UserError, match="trainer/gpuu"):
        check_command_line("train_vqgan", ["data.path=x", "trainer=gpuu"])


def test_what_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "2024").mkdir()
    for override in ("data.path=2024", "run_dir=2024"):
        name = override.partition("=")[0]
        with pytest.raises(UserError, match=f"{name}=2024 is a number.*write '{name}=\"2024\"'"):
            check_command_line("train_vqgan", ["data.path=.", override])
    check_command_line("train_vqgan", ['data.path="2024"'])
    for given in ("2024_01", "1e3"):
        with pytest.raises(UserError, match=f"run_dir={given} is a number.*'run_dir=\"{given}\"'"):
            check_command_line("train_vqgan", ["data.path=.", f"run_dir={given}"])
    with pytest.raises(UserError, match="run_dir=True is true or false to Hydra"):
        check_command_line("train_vqgan", ["data.path=.", "run_dir=True"])
    for override in ("data.path=", "data.val_path=", "run_dir=''"):
        name = override.partition("=")[0]
        with pytest.raises(UserError, match=f"^{name}= is empty"):
            check_command_line("train_vqgan", ["data.path=.", override])
    for override in ("data.path=café", "data.path=a&b"):
        with pytest.raises(UserError, match=f"{override} cannot be read.*letters such as é"):
            check_command_line("train_vqgan", [override])
    check_command_line("train_vqgan", ['data.path="."', 'data.val_path="."'])
    check_command_line("train_vqgan", ["data.path=.", "training.health=null"])
    with pytest.raises(UserError, match="'resume=\"2024\"'"):
        check_command_line("train_vqgan", ["resume=2024"])
    with pytest.raises(
        UserError, match=r"seed=0,1 has several values: give one; or write 'seed=\[0,1\]'"
    ):
        check_command_line("train_vqgan", ["data.path=.", "seed=0,1"])
    with pytest.raises(UserError, match="cannot be looked at"):
        check_command_line("train_vqgan", ["data.path=" + 300 * "x"])
    for override in ("size=null", "perceptual=null"):
        with pytest.raises(UserError, match=f"^{override}: give the name of a file"):
            check_command_line("train_vqgan", ["data.path=.", override])
    needed = {
        "train_vqgan": ["data.path=."],
        "train_transformer": ["data.path=.", "vqgan=."],
        "sample": ["checkpoint=."],
    }
    for name, override, message in (
        ("train_vqgan", "training.optimizer=null", "has settings of its own and cannot be null"),
        ("train_transformer", "tokens=null", "has settings of its own and cannot be null"),
        ("train_vqgan", "run_dir=null", "it must be a path"),
        ("sample", "output_dir=null", "it must be a path"),
    ):
        with pytest.raises(UserError, match=f"^{override}: .*{message}"):
            check_command_line(name, [*needed[name], override])


def test_several_runs_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train_vqgan.py", "-m", "seed=0,1"])
        with pytest.raises(SystemExit, match="2"):
            start("train_vqgan")
    assert "give the command once for each run" in capsys.readouterr().err


def test_help_says_where_settings_are_explained(run: Run) -> None:
    outcome = run("train_vqgan", "--help")
    assert outcome.status == 0
    assert "configs/, first of all train_vqgan.yaml" in " ".join(outcome.out.split())
    assert "size: full, tiny" in outcome.out
    assert "Hydra" not in outcome.out
