"""Two processes on the CPU, started as a user starts them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from tiny_commands import composed
from tiny_images import write_images

from taming.cli.training import build_trainer
from taming.training.processes import choose_strategy, environment_plugins

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MY_MODULE = """
import os, signal
from pathlib import Path
import lightning

class MyCallback(lightning.Callback):
    def on_train_end(self, trainer, module):
        Path(f"seen_{trainer.global_rank}").touch()

class Preempted(lightning.Callback):
    def __init__(self):
        queued = Path("queued_" + os.environ["SLURM_NODEID"])
        signal.signal(signal.SIGUSR1, lambda *_: queued.touch())

    def on_train_batch_end(self, trainer, *args):
        if (trainer.node_rank, trainer.global_step) == (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
"""


def start(directory: Path, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Starts Python as a user does, or a scheduler."""
    no_gpu = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, **no_gpu, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(*options: str) -> list[str]:
    """Starts a script with these options; the port is this process's, so that tests do not meet."""
    port = 20000 + os.getpid() % 20000
    return ["-m", "torch.distributed.run", f"--master-port={port}", *options]


def machine(rank: int) -> list[str]:
    """One of two machines."""
    address = "--master-addr=127.0.0.1"
    return torchrun("--nnodes=2", "--nproc-per-node=1", address, f"--node-rank={rank}")


def slurm(node: int) -> dict[str, str]:
    """The variables that SLURM gives a job's process, one on each of two machines."""
    of_job = {
        "JOB_ID": "7",
        "JOB_NAME": "gpt",
        "NODELIST": "127.0.0.1",
        "NNODES": "2",
        "NTASKS": "2",
    }
    of_process = {"NTASKS_PER_NODE": "1", "LOCALID": "0", "PROCID": str(node), "NODEID": str(node)}
    port = {"MASTER_PORT": str(20000 + os.getpid() % 20000)}
    return port | {f"SLURM_{name}": value for name, value in (of_job | of_process).items()}


@pytest.mark.parametrize(("num_gpus", "own"), [(1, False), (4, True)])
def test_devices_auto_are_all_gpus(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, own: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    config = composed("train_vqgan", "data.path=x", "trainer.devices=auto")
    assert isinstance(choose_strategy(config.trainer, True), DDPStrategy) == own


def end(*processes: subprocess.Popen[str]) -> tuple[list[int], list[tuple[str, str]]]:
    """The exit statuses of processes, and what each has printed and logged."""
    printed = [process.communicate(timeout=300) for process in processes]
    return [process.returncode for process in processes], printed


@pytest.mark.slow
def test_commands_in_two_processes(tmp_path: Path) -> None:
    """Each job of a sweep; then stage 2 on two machines of SLURM, which end it, and two others."""
    write_images(tmp_path / "few" / "a", 8, side=32)
    write_images(tmp_path / "few" / "b", 9, side=32, seed=1)
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    common = ("data.path=few", "size=tiny", "data.val_fraction=0.3", "logger=csv")
    stage_1 = (*common, "perceptual=none", "data.batch_size=4", "trainer.devices=2", "seed=0,1",
        "trainer.max_steps=2", "trainer.val_check_interval=1", "run_dir=sweep",
        "+callbacks.mine={_target_: my_module.MyCallback}")  # fmt: skip
    statuses, ((_, errors),) = end(start(tmp_path, SCRIPTS / "train_vqgan.py", "-m", *stage_1))
    assert statuses == [0], errors
    assert "each step takes 8 images: data.batch_size=4 × 2 processes" in errors
    results = sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/result.json"))
    assert results == ["0_seed-0", "1_seed-1"]
    assert (tmp_path / "sweep" / "1_seed-1" / "report.html").is_file(), errors
    assert {path.name for path in tmp_path.glob("seen_*")} == {"seen_0", "seen_1"}

    stage_2 = (SCRIPTS / "train_transformer.py", *common, "report=false", "vqgan=sweep/0_seed-0",
        "data.batch_size=2", "trainer.num_nodes=2", "trainer.max_steps=22",
        "trainer.val_check_interval=10", "run_dir=gpt", "resume=auto")  # fmt: skip
    preempted = (*stage_2, "+callbacks.mine={_target_: my_module.Preempted}")
    # in the way of a file: the rank that writes must not leave the other waiting for it
    (tmp_path / "gpt" / "checkpoints" / "best.unfinished").mkdir(parents=True)
    statuses, printed = end(*(start(tmp_path, *preempted, **slurm(node)) for node in (0, 1)))
    assert statuses == [128 + signal.SIGUSR1] * 2, printed
    assert "best.ckpt could not be written" in printed[0][1]
    assert sorted(path.name for path in tmp_path.glob("queued_*")) == ["queued_0", "queued_1"]
    assert not list(tmp_path.glob("hpc_ckpt*"))  # Lightning's, of half a step
    assert printed[0][1].count("images to train") == 1  # the first process looked for all
    assert "images to train" not in printed[1][1]
    statuses, printed = end(*(start(tmp_path, *machine(node), *stage_2) for node in (0, 1)))
    assert statuses == [0, 0], printed
    assert json.loads((tmp_path / "gpt" / "result.json").read_text())["step"] == 22
    assert (tmp_path / "gpt" / "model" / "tokenizer" / "config.json").is_file()

    samples = (
        SCRIPTS / "sample.py",
        "checkpoint=gpt",
        "num_images=5",
        "output_dir='both_${now:%f}'",
    )
    statuses, ((output, errors),) = end(start(tmp_path, *torchrun("--nproc-per-node=2"), *samples))
    assert statuses == [0], errors
    assert output.count("samples.npz") == 1  # one of them speaks, and writes
    assert len(list(tmp_path.glob("both_*/samples.npz"))) == 1


def test_the_progress_bar_can_be_switched_off() -> None:
    settings = "data.path=x", "trainer=cpu", "+trainer.enable_progress_bar=false"
    assert build_trainer(composed("train_vqgan", *settings)).progress_bar_callback is None


def test_lightning_queues_no_job_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NTASKS": "1", "JOB_NAME": "run", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (environment,) = environment_plugins()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue
    assert environment_plugins([environment]) == []
    trainer = build_trainer(composed("train_vqgan", "data.path=x", "trainer=cpu"))
    assert [e.auto_requeue for e in vars(trainer._accelerator_connector).values()
            if isinstance(e, SLURMEnvironment)] == [False, False]  # fmt: skip
