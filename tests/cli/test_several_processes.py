"""Two processes on the CPU, started as a user starts them, train as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_commands import Run, succeeds, write_images

from taming import VQGAN

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
COMMON = (
    "size=tiny",
    "data.val_fraction=0.3",
    "perceptual=none",
    "logger=csv",
    "trainer.max_steps=3",
    "trainer.log_every_n_steps=1",
    "trainer.gradient_clip_val=null",
    # nothing that depends on random numbers of a process
    "model.quantizer.codebook_size=16",
    "model.quantizer.revive_after=null",
    "model.quantizer.ema_decay=0.9",
    "model.quantizer.entropy_weight=0.1",
    "adversary.lecam_weight=0.1",
    "adversary.discriminator.norm=actnorm",
    "training.optimizer.warmup_steps=0",
)

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


@pytest.mark.slow
def test_two_processes_train_as_one(run: Run, tmp_path: Path) -> None:
    """Each job of a sweep in two processes; then stage 2 on two machines."""
    write_images(tmp_path / "few" / "a", 8, side=32)
    write_images(tmp_path / "few" / "b", 9, side=32, seed=1)
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    succeeds(run("train_vqgan", "data.path=few", *COMMON, "data.batch_size=8", "run_dir=one"))
    # 5 images to validate, in batches of 1: one process has a batch more than the other
    two = ("data.batch_size=4", "data.loader.val_batch_size=1", "trainer.devices=2", "seed=0,1")
    two += ("+callbacks.mine={_target_: my_module.MyCallback}",)
    script = (SCRIPTS / "train_vqgan.py", "-m", "data.path=few", *COMMON, *two, "run_dir=sweep")
    _, errors = (sweep := start(tmp_path, *script)).communicate(timeout=300)
    assert sweep.returncode == 0, errors
    assert "each step takes 8 images: data.batch_size=4 × 2 processes" in errors
    results = sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/result.json"))
    assert results == ["0_seed-0", "1_seed-1"]
    assert {path.name for path in tmp_path.glob("seen_*")} == {"seen_0", "seen_1"}
    runs = (tmp_path / "one", tmp_path / "sweep" / "0_seed-0")
    one, split = map(VQGAN.from_pretrained, runs)
    # not every weight: where the gradient is all but zero, Adam's steps are rounding errors
    torch.testing.assert_close(split.last_layer, one.last_layer, rtol=1e-3, atol=1e-5)
    codebooks = [model.quantizer.state_dict()["codebook"] for model in (one, split)]
    torch.testing.assert_close(*codebooks, rtol=1e-3, atol=1e-4)
    numbers = [json.loads((path / "result.json").read_text())["metrics"] for path in runs]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-4)

    stage_2 = (
        "vqgan=one", "data.path=few", "size=tiny", "data.batch_size=2", "data.val_fraction=0.3",
        "trainer.num_nodes=2", "trainer.max_steps=2", "trainer.val_check_interval=1", "logger=csv",
        "callbacks.best.monitor=val/gap",  # which is another on each rank
        "run_dir=gpt",
    )  # fmt: skip
    # in the way of a file: the rank that writes must not leave the other waiting for it
    (tmp_path / "gpt" / "checkpoints" / "best.unfinished").mkdir(parents=True)
    nodes = [
        start(tmp_path, *machine(rank), SCRIPTS / "train_transformer.py", *stage_2)
        for rank in (0, 1)
    ]
    ends = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ends
    assert "best.ckpt could not be written" in ends[0][1]
    assert (tmp_path / "gpt" / "model" / "tokenizer" / "config.json").is_file()

    samples = ("checkpoint=gpt", "num_images=5", "seed=1")
    succeeds(run("sample", *samples, "output_dir=alone"))
    script = (SCRIPTS / "sample.py", *samples, "output_dir='both_${now:%f}'")
    output, errors = (
        both := start(tmp_path, *torchrun("--nproc-per-node=2"), *script)
    ).communicate()
    assert both.returncode == 0, errors
    assert output.count("samples.npz") == 1  # one of them speaks, and writes
    (directory,) = tmp_path.glob("both_*")
    with (
        np.load(tmp_path / "alone" / "samples.npz") as one,
        np.load(directory / "samples.npz") as two,
    ):
        np.testing.assert_array_equal(one["arr_0"], two["arr_0"])
