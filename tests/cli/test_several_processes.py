"""Two processes on the CPU, started as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from tiny_commands import composed, write_images

from taming.cli.processes import choose_strategy

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MY_MODULE = """
from pathlib import Path
import lightning

class MyCallback(lightning.Callback):
    def on_train_end(self, trainer, module):
        Path(f"seen_{trainer.global_rank}").touch()
"""


def start(directory: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """Starts Python as a user does."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
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


@pytest.mark.parametrize(("num_gpus", "own"), [(1, False), (4, True)])
def test_devices_auto_are_all_gpus(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, own: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    config = composed("train_vqgan", "data.path=x", "trainer.devices=auto")
    assert isinstance(choose_strategy(config), DDPStrategy) == own


@pytest.mark.slow
def test_commands_in_two_processes(tmp_path: Path) -> None:
    """Each job of a sweep; then stage 2 on two machines, and samples of it."""
    write_images(tmp_path / "few" / "a", 8, side=32)
    write_images(tmp_path / "few" / "b", 9, side=32, seed=1)
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    common = ("data.path=few", "size=tiny", "data.val_fraction=0.3", "trainer.max_steps=2",
        "trainer.val_check_interval=1", "logger=csv")  # fmt: skip
    stage_1 = (*common, "perceptual=none", "data.batch_size=4", "trainer.devices=2", "seed=0,1")
    stage_1 += ("+callbacks.mine={_target_: my_module.MyCallback}", "run_dir=sweep")
    _, errors = (sweep := start(tmp_path, SCRIPTS / "train_vqgan.py", "-m", *stage_1)).communicate(
        timeout=300
    )
    assert sweep.returncode == 0, errors
    assert "each step takes 8 images: data.batch_size=4 × 2 processes" in errors
    results = sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/result.json"))
    assert results == ["0_seed-0", "1_seed-1"]
    assert (tmp_path / "sweep" / "1_seed-1" / "report.html").is_file(), errors
    assert {path.name for path in tmp_path.glob("seen_*")} == {"seen_0", "seen_1"}

    stage_2 = (
        *common,
        "report=false",
        "vqgan=sweep/0_seed-0",
        "data.batch_size=2",
        "trainer.num_nodes=2",
    )
    # in the way of a file: the rank that writes must not leave the other waiting for it
    (tmp_path / "gpt" / "checkpoints" / "best.unfinished").mkdir(parents=True)
    nodes = [
        start(tmp_path, *machine(rank), SCRIPTS / "train_transformer.py", *stage_2, "run_dir=gpt")
        for rank in (0, 1)
    ]
    ends = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ends
    assert "best.ckpt could not be written" in ends[0][1]
    assert (tmp_path / "gpt" / "model" / "tokenizer" / "config.json").is_file()

    samples = ("checkpoint=gpt", "num_images=5", "output_dir='both_${now:%f}'")
    output, errors = (
        both := start(tmp_path, *torchrun("--nproc-per-node=2"), SCRIPTS / "sample.py", *samples)
    ).communicate(timeout=300)
    assert both.returncode == 0, errors
    assert output.count("samples.npz") == 1  # one of them speaks, and writes
    assert len(list(tmp_path.glob("both_*/samples.npz"))) == 1
