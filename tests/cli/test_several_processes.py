"""Two processes on the CPU, started as a user starts them: the same training as in one."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_commands import write_images

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


def train(directory: Path, script: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *overrides],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def start_node(directory: Path, rank: int, script: str, *overrides: str) -> subprocess.Popen[str]:
    """One of two machines; the port is this process's, so that tests do not meet."""
    port = 20000 + os.getpid() % 20000
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}"),
            *("--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"),
            *(SCRIPTS / f"{script}.py", *overrides),
        ],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    write_images(tmp_path / "few" / "a", 8, side=32)
    write_images(tmp_path / "few" / "b", 9, side=32, seed=1)
    for name, overrides in (
        ("one", ["data.batch_size=8", "trainer.devices=1"]),
        # 5 images to validate, in batches of 1: one process has a batch more than the other
        ("two", ["data.batch_size=4", "trainer.devices=2", "data.loader.val_batch_size=1"]),
    ):
        arguments = ("data.path=few", *COMMON, *overrides, f"run_dir={name}")
        done = train(tmp_path, "train_vqgan", *arguments)
        assert done.returncode == 0, done.stderr
    # the same two as two machines, each of which torchrun starts
    arguments = ("data.path=few", *COMMON, "data.batch_size=4", "data.loader.val_batch_size=1")
    several = (*arguments, "trainer.num_nodes=2", "trainer.devices=1", "run_dir=nodes")
    nodes = [start_node(tmp_path, rank, "train_vqgan", *several) for rank in (0, 1)]
    for node in nodes:
        _, errors = node.communicate(timeout=300)
        assert node.returncode == 0, errors
    one, two = (VQGAN.from_pretrained(tmp_path / name) for name in ("one", "two"))
    same = VQGAN.from_pretrained(tmp_path / "nodes").to_saved().state
    assert all(torch.equal(same[name], value) for name, value in two.to_saved().state.items())
    # not every weight: where the gradient is all but zero, Adam's steps are rounding errors
    torch.testing.assert_close(two.last_layer, one.last_layer, rtol=1e-3, atol=1e-5)
    codebooks = [model.quantizer.state_dict()["codebook"] for model in (one, two)]
    torch.testing.assert_close(*codebooks, rtol=1e-3, atol=1e-4)
    last = []
    for name in ("one", "two"):
        with (tmp_path / name / "metrics.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["val/psnr"]]
        last.append({k: float(v) for k, v in rows[-1].items() if k.startswith("val/") and v})
    assert last[0] == pytest.approx(last[1], rel=1e-3, abs=1e-4)

    stage_2 = (
        "vqgan=two", "data.path=few", "data.loader.num_workers=0", "data.batch_size=2",
        "data.val_fraction=0.3", "model.num_layers=1", "model.num_heads=2", "model.embed_dim=16",
        "callbacks.grids.num_images=2", "trainer=cpu", "trainer.devices=2", "trainer.max_steps=2",
        "trainer.val_check_interval=1", "logger=csv", "run_dir=gpt",
        "callbacks.best.monitor=val/gap",  # which is another on each rank
    )  # fmt: skip
    # in the way of a file: the rank that writes must not leave the other waiting for it
    (tmp_path / "gpt" / "checkpoints" / "best.unfinished").mkdir(parents=True)
    done = train(tmp_path, "train_transformer", *stage_2)
    assert done.returncode == 0, done.stderr
    assert "best.ckpt could not be written" in done.stderr
    assert (tmp_path / "gpt" / "model" / "tokenizer" / "config.json").is_file()
