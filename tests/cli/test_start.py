"""How a command starts: mistakes are found before PyTorch is imported; nothing is left behind."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig
from tiny_commands import Outcome, Run, fails, succeeds, without_python_settings

from taming.cli.command import CONFIGS, command, job
from taming.runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
LIGHT = """
import contextlib, sys
from importlib import import_module
for line in sys.stdin.read().splitlines():
    name, *arguments = line.split()
    sys.argv = [f"{name}.py", *arguments]
    with contextlib.suppress(SystemExit):
        import_module(f"taming.cli.{name}").main()
"""


def test_mistakes_help_and_completion_import_nothing_heavy(tmp_path: Path) -> None:
    for package in ("torch", "lightning", "torchvision"):
        (tmp_path / f"{package}.py").write_text("raise RuntimeError('imported too early')")
    cases = {
        "train_vqgan --help": "trainer.max_steps=50000",
        "train_vqgan --cfg job": "learning_rate: 0.0004",
        "train_vqgan -sc query=bash": "size=tiny",
        "train_vqgan data.pat=x": "no setting data.pat. Did you mean data.path",
        "train_transformer data.path=x": "settings are missing: vqgan",
        "sample seed=3": "settings are missing: checkpoint",
        "sample checkpoint=nowhere": "checkpoint=nowhere does not exist",
    }
    typed = "python scripts/train_vqgan.py size="
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    completion = {"COMP_LINE": typed, "COMP_POINT": str(len(typed))}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        input="\n".join(cases),
        env=without_python_settings() | path | completion,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(printed in done.stdout + done.stderr for printed in cases.values())
    assert len(done.stderr.splitlines()) == 4  # one line for each mistake
    assert not (tmp_path / "outputs").exists()


# each would leave a file if it were imported
TRAPS = ("hydra_plugins", "timm", "tifffile", "tensorboardX", "mlflow", "transformer_engine",
    "bitsandbytes", "olefile", "trap")  # fmt: skip
MY_MODULE = """
from pathlib import Path
Path("imported_my_module").touch()
def mine():
    raise ValueError("my callback is built")
"""


def test_nothing_in_the_working_directory_is_imported_but_what_a_target_names(
    tmp_path: Path,
) -> None:
    for name in TRAPS:
        (tmp_path / name).mkdir()
        for file in ("__init__", "plugin"):
            text = f"from pathlib import Path\nPath('imported_{name}').touch()\n"
            (tmp_path / name / f"{file}.py").write_text(text)
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config_composed.yaml").write_text("logger: {_target_: trap.plugin}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "0.png").write_text("Pillow tries all its plugins, and what they need")
    cases = {
        "train_vqgan --help": "trainer.max_steps=50000",
        "sample checkpoint=model": "error: model",
        "train_vqgan resume=foreign": "error: nothing to resume",
        "train_vqgan data.path=model perceptual=none": "1 of 1 images are broken",
    }
    own = "train_vqgan data.path=model +callbacks.mine._target_=my_module.mine"

    def start(*commands: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", LIGHT],  # as a script is: not from the working directory
            input="\n".join(commands),
            env=without_python_settings() | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    printed = start(*cases)
    assert [text for text in cases.values() if text not in printed] == [], printed
    assert not list(tmp_path.glob("imported_*"))
    assert "my callback is built" in start(own)
    assert [path.name for path in tmp_path.glob("imported_*")] == ["imported_my_module"]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Starts a command whose own work is `main`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()

    def call(
        name: str, *overrides: str, main: Callable[[DictConfig], object] = lambda config: None
    ) -> Outcome:
        def task(config: DictConfig) -> object:
            return main(config)

        task.__module__ = f"taming.cli.{name}"
        program = command(hydra.main(CONFIGS, name, "1.3")(job(task)))
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *overrides])
        monkeypatch.setattr(sys, "path", sys.path.copy())
        status = 0
        try:
            program()
        except SystemExit as ended:
            status = int(str(ended.code))
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("train_transformer", ["data.path=x", "vqgan=hf:owner/name"]),
        ("train_vqgan", ["data.path=${hydra:runtime.cwd}/x", "perceptual=none"]),
        ("train_vqgan", ['data.path="."', 'data.val_path="."', "callbacks.health=null"]),
        ("demo", []),
    ],
)
def test_what_is_right_passes(call: Run, name: str, overrides: list[str], tmp_path: Path) -> None:
    succeeds(call(name, *overrides))
    assert not (tmp_path / "outputs").exists()  # nothing was written, so nothing stays


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("train_vqgan", ["data.path=x", "data.val_path=nowhere"]),
        ("train_vqgan", ["data.path=x", "perceptual=features", "perceptual.weights=nowhere"]),
        ("train_transformer", ["data.path=x", "vqgan=nowhere"]),
        ("sample", ["checkpoint=x", "conditions.path=nowhere"]),
        ("reconstruct", ["checkpoint=x", "input=nowhere"]),
    ],
)
def test_paths_that_lead_nowhere(call: Run, name: str, overrides: list[str]) -> None:
    fails(call(name, *overrides), f"{overrides[-1]} does not exist")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.path=2024", "Hydra reads data.path=2024 as a number. Write 'data.path=\"2024\"'"),
        ("run_dir=2024_01", "Write 'run_dir=\"2024_01\"'"),
        ("data.val_path=", "data.val_path=: give a path, or leave it out"),
        ("run_dir=null", "run_dir=null: give a path, or leave it out"),
        ("data.path=café", "data.path=café cannot be read"),
        ("data.path=my=images", "data.path=my=images cannot be read"),
        ("images", "images has no value. Settings are NAME=VALUE"),
        ('data.path="~nobody/x"', "data.path=~nobody/x does not exist"),
        ("seed=0,1", "--multirun to run each of them, or write 'seed=[0,1]'"),
        ("logger=null", "logger=null: give one of the options of logger"),
        ("resume=nowhere", "nothing to resume: nowhere"),
        ("experiment=flower64", "'experiment/flower64'; there are"),
        ("trainer.max_step=3", "no setting trainer.max_step. Did you mean trainer.max_steps"),
        ("data.learning_rate=3", "Did you mean training.optimizer.learning_rate"),
        ("data.crop=none", "Did you mean data.source.group or data.path or data.transform.crop?"),
        ("model/quantizer=finite_scalar", "no setting model/quantizer. Did you mean quantizer?"),
        ("data.size=64", "Did you mean data.batch_size or data.transform.resize?"),
        ("quantiser=finite_scalar", "no setting quantiser. Did you mean quantizer?"),
        ("tokens=3", "no setting tokens"),
    ],
)
def test_values_that_are_not_right(call: Run, override: str, message: str) -> None:
    fails(call("train_vqgan", "data.path=.", override), message)
    assert not Path("outputs").exists()


def test_the_directory_is_where_the_user_says(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def main(config: DictConfig) -> None:
        calls.append(config.run_dir)
        Path(config.run_dir, "file").write_text("")

    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    for run_dir, expected in (("a/b", "a/b"), ("~/c", "home/c"), (str(Path.cwd() / "d"), "d")):
        assert call("train_vqgan", "data.path=x", f"run_dir='{run_dir}'", main=main).status == 0
        assert calls[-1] == expected
        assert Path(expected, "file").exists()


def test_a_failed_job_lets_the_others_of_a_sweep_go_on(call: Run) -> None:
    def main(config: DictConfig) -> None:
        if config.seed == 0:
            raise UserError("not with seed 0")
        (Path(config.run_dir) / "seen").touch()

    outcome = call("train_vqgan", "-m", "data.path=x", "run_dir=sweep", "seed=0,1", main=main)
    fails(outcome, "error: not with seed 0")
    assert [path.name for path in Path("sweep").glob("*/")] == ["1_seed-1"]


def test_a_dead_loader_is_a_sentence(call: Run) -> None:
    def main(config: DictConfig) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    outcome = call("train_vqgan", "data.path=x", main=main)
    fails(outcome, "has died (DataLoader worker (pid 7) is killed by signal: Killed). If memory")


def test_interrupted(call: Run) -> None:
    def main(config: DictConfig) -> None:
        raise KeyboardInterrupt

    assert call("train_vqgan", "data.path=x", main=main).status == 130
    assert call("train_vqgan", "-m", "data.path=x", "seed=0,1", main=main).status == 130


def test_a_choice_that_is_given_wins(call: Run) -> None:
    calls = []
    for overrides in (["size=tiny"], ["size=tiny", "trainer=gpu"], ["trainer=gpu", "size=tiny"]):
        call("train_vqgan", "data.path=x", *overrides, main=lambda c: calls.append(c.trainer))
    assert [trainer.accelerator for trainer in calls] == ["cpu", "gpu", "gpu"]
    assert {trainer.max_steps for trainer in calls} == {200}


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "hydra":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
import taming.cli.sample
"""


def test_ctrl_c_while_a_command_is_imported_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == "\ninterrupted\n"


def test_only_a_command_that_prints_dies_of_a_closed_pipe() -> None:
    script = (
        "import signal; from taming.cli import command\n"
        "command._prepare(); print(signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)"
    )
    # sys.argv[0] is -c, which is also a flag of Hydra
    assert subprocess.check_output([sys.executable, "-c", script], cwd=ROOT) == b"True\n"


@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"]])
def test_output_that_nobody_reads_ends_without_a_traceback(flags: list[str]) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "train_vqgan.py"), *flags]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
