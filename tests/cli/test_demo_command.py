"""What the demo asks of the commands it runs. The runs themselves are faked."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tiny_commands import Run

from taming.cli import demo
from taming.cli.next_command import program
from taming.runtime.errors import UserError


def test_any_folder_and_the_seed_reach_the_commands(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, dict[str, object]] = {}

    def record(main: Callable[[], None], *overrides: str) -> None:
        script = main.__module__.rpartition(".")[2]
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        calls[script] = {override.key_or_group: override.value() for override in parsed}
        if script == "sample":
            raise UserError("that is enough")

    monkeypatch.setattr(demo, "run_command", record)
    monkeypatch.setenv("HOME", str(tmp_path))
    demo_of_seed_7 = ("demo", "output_dir='~/of (2), a=b'", "seed=7")
    assert "that is enough" in run(*demo_of_seed_7).err
    output_dir = Path("of (2), a=b")  # from the current directory, where it is below
    assert calls["train_vqgan"]["run_dir"] == str(output_dir / "vqgan")
    assert calls["train_transformer"]["vqgan"] == str(output_dir / "vqgan")
    assert calls["sample"]["output_dir"] == str(output_dir / "samples")
    assert [call["seed"] for call in calls.values()] == [7, 7, 7]
    # it was broken off: it begins anew, and other files stay
    (output_dir / "vqgan").mkdir()
    (output_dir / "notes.txt").touch()
    assert "that is enough" in run(*demo_of_seed_7).err
    assert sorted(path.name for path in output_dir.iterdir()) == ["demo.unfinished", "notes.txt"]


def test_commands_of_the_demo_name_the_next_command_as_the_demo_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripts: list[str] = []

    def record(arguments: list[str], check: bool) -> SimpleNamespace:
        assert arguments[1:3] == ["-P", "-c"]  # nothing from the working directory
        scripts.append(arguments[3])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("sys.argv", ["scripts/demo.py"])
    monkeypatch.setattr("subprocess.run", record)
    demo.run_command(demo.sample, "num_images=1")
    monkeypatch.setattr("sys.argv", ["-c"])  # what a child process starts with
    exec(scripts[0].partition("from")[0])
    assert program("evaluate") == "python scripts/evaluate.py"


def test_an_earlier_demo_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    outcome = run("demo", f"output_dir={tmp_path}")
    assert "holds an earlier demo or other files. Delete it" in outcome.err
    assert (tmp_path / "report.json").exists()
