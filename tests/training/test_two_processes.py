"""Two processes train as one, and exchange no more than they must."""

import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import (
    STAGES,
    TinyData,
    backward,
    image_data,
    optimizer_config,
    run_training,
    tiny_adversary,
    tiny_vqgan,
    token_data,
    transformer_training,
    vqgan_training,
    without_trainer,
)
from torch import distributed as dist
from torch import multiprocessing
from torch.distributed import fsdp

from taming.conditioning import ClassLabel
from taming.runtime.errors import UserError
from taming.serialization import load_saved_model
from taming.training import Clock, data_parallel
from taming.training.strategies import ShardedStrategy
from taming.transformer import GPT


def exact(kind: str, batch_size: int) -> tuple[Any, TinyData]:
    """A training without random numbers, and with nothing that depends on how a batch is cut."""
    torch.manual_seed(0)
    optimizer = optimizer_config(schedule="constant", weight_decay=0.3)
    if kind == "vqgan":
        vqgan = tiny_vqgan(init="uniform")
        adversary = tiny_adversary("group", loss="vanilla", adaptive=False, optimizer=optimizer)
        return vqgan_training(adversary, vqgan, optimizer=optimizer), image_data(batch_size)
    module = transformer_training(ClassLabel(3), optimizer=optimizer)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module, token_data(batch_size)


class CountExchanges(L.Callback):
    """Counts, for each batch, what the ranks exchange: buckets of gradients, and all else."""

    NAMES = (
        "all_reduce", "broadcast", "reduce", "gather", "all_gather", "all_gather_into_tensor",
        "barrier", "all_gather_object", "broadcast_object_list", "_broadcast_coalesced",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.batches: list[Counter[str]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model: Any = trainer.model
        model.register_comm_hook(self.counts, self.reduce)
        self.originals = {name: getattr(dist, name) for name in self.NAMES}
        for name, function in self.originals.items():
            setattr(dist, name, self.counted(name, function))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return function(*args, **kwargs)

        return call

    def reduce(
        self, counts: Counter[str], bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        counts[f"bucket {bucket.index()}"] += 1
        summed = self.originals["all_reduce"](bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0] / 2)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.batches.append(self.counts.copy())
        self.counts.clear()

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        for name, function in self.originals.items():
            setattr(dist, name, function)


class Terminated(L.Callback):
    """The second process gets the signal with which schedulers end one."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if (trainer.global_rank, trainer.global_step) == (1, 23):
            os.kill(os.getpid(), signal.SIGTERM)


class OnCPU(fsdp.FullyShardedDataParallel):
    """PyTorch splits weights among CPUs only when it is told the device, and Lightning does not."""

    def __init__(self, *args: Any, device_id: Any, **settings: Any) -> None:
        super().__init__(*args, device_id=torch.device("cpu"), **settings)


Both = tuple[Path, list[dict[str, Any]]]  # a folder, and the results of two ranks
SPLIT: dict[str, Any] = {"ema_decay": None, "val_check_interval": 1}
# the bound is below half of the gradients
BY_VALUE = {**SPLIT, "max_steps": 3, "gradient_clip_algorithm": "value", "gradient_clip_val": 1e-3}


def on_rank(rank: int, folder: str, port: int) -> None:
    """Trains as one of two processes that `torchrun` has started."""
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    results: dict[str, Any] = {}
    for kind in STAGES:
        counting = CountExchanges()
        run = run_training(
            Path(folder, kind),
            *exact(kind, 1),
            max_steps=5,
            accumulate_grad_batches=2,
            val_check_interval=6,
            devices=2,
            strategy=data_parallel(kind == "vqgan", accumulates=True),
            callbacks=[counting],
        )
        results[kind] = (run.recorder.rows, counting.batches)
    for kind in STAGES:
        counting = CountExchanges()
        module, data = exact(kind, 1)
        if kind == "vqgan":
            torch.manual_seed(0)
            vqgan = tiny_vqgan(revive_after=100, ema_decay=0.9)
            module = vqgan_training(tiny_adversary(lecam_weight=0.1), vqgan)
        with pytest.raises(SystemExit) as ended:
            intervals = {"val_check_interval": 100, "log_every_n_steps": 30}
            run_training(
                Path(folder, f"{kind}_counted"), module, data, max_steps=45, **intervals, devices=2,
                strategy=data_parallel(kind == "vqgan"),
                callbacks=[counting, Terminated(), Clock("00:01:00:00")],
            )  # fmt: skip
        results[f"{kind}_counted"] = (counting.batches, module.global_step, ended.value.code)
    fsdp.FullyShardedDataParallel = OnCPU
    results["fsdp"] = []
    for steps in (3, 4):  # from the file of one process, and from a directory
        strategy = ShardedStrategy(process_group_backend="gloo")
        split = {**SPLIT, "devices": 2, "strategy": strategy, "max_steps": steps}
        run = run_training(Path(folder, "fsdp"), *exact("transformer", 2), resume=True, **split)
        results["fsdp"] += run.recorder.column("train/loss")
    results["sums"] = run.module.likelihood.mean_value.dtype
    split = {**BY_VALUE, "devices": 2, "strategy": ShardedStrategy(process_group_backend="gloo")}
    by_value = run_training(Path(folder, "by_value"), *exact("transformer", 2), **split)
    results["by_value"] = by_value.recorder.rows
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()  # its threads may abort an exit right after an exchange


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What two ranks have done, and where."""
    folder = tmp_path_factory.mktemp("both")
    run_training(folder / "fsdp", *exact("transformer", 4), max_steps=2, **SPLIT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(on_rank, (str(folder), port), nprocs=2)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_two_processes_train_as_one(both: Both, tmp_path: Path, kind: str) -> None:
    """To 1e-6: a part of each batch, and accumulation."""
    folder, ranks = both
    recorder = run_training(tmp_path / "alone", *exact(kind, 4), max_steps=5).recorder
    rows, _ = ranks[0][kind]
    assert [step for step, _ in rows] == [step for step, _ in recorder.rows]
    for (_, actual), (_, expected) in zip(rows, recorder.rows, strict=True):
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-5)
        losses = {key for key in expected if key.endswith("loss")}
        assert {key: actual[key] for key in losses} == pytest.approx(
            {key: expected[key] for key in losses}, rel=1e-6, abs=1e-6
        )
    same_weights(tmp_path / "alone", folder / kind)


def same_weights(one: Path, other: Path) -> None:
    saved = [load_saved_model(path / "model") for path in (one, other)]
    states = [model.parts.get("transformer", model).state for model in saved]
    assert states[0].keys() == states[1].keys()
    for weight, value in states[0].items():
        if value.ndim < 2:  # where the gradient is all but zero, Adam's steps are rounding
            continue
        torch.testing.assert_close(states[1][weight], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_weights_are_split_among_processes_and_put_together(
    both: Both, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One process, two with half of the weights each, and one again; the moments come along."""
    folder, ranks = both
    shards = sorted(path.name for path in (folder / "fsdp" / "checkpoints" / "last.ckpt").iterdir())
    assert [name[:11] for name in shards] == ["rest.pt", "shard-00001", "shard-00002"]
    split, whole = (
        GPT.load_saved(folder / "fsdp" / place).fingerprint()
        for place in ("checkpoints/last.ckpt", "model")
    )
    assert split == whole
    damaged = shutil.copytree(folder / "fsdp" / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt")
    content = bytearray((damaged / shards[2]).read_bytes())
    content[-1] ^= 1
    (damaged / shards[2]).write_bytes(content)
    with pytest.raises(UserError, match=r"last\.ckpt cannot be read.*damaged"):
        GPT.load_saved(damaged)
    single = run_training(tmp_path / "alone", *exact("transformer", 4), max_steps=6, **SPLIT)
    stage_2 = exact("transformer", 4)
    after = run_training(folder / "fsdp", *stage_2, max_steps=6, resume=True, **SPLIT)
    assert "resumes with 1 instead of 2 processes" in caplog.text
    assert (folder / "fsdp" / "checkpoints" / "last.ckpt").is_file()
    expected, actual = (run.recorder.column("train/loss") for run in (single, after))
    for column in (ranks[0]["fsdp"], actual):
        steps = {step for step, _ in column}
        assert column == [(s, pytest.approx(x, abs=1e-6)) for s, x in expected if s in steps]
    assert [step for step, _ in [*ranks[0]["fsdp"], *actual]] == [3, 4, 5, 6]
    same_weights(tmp_path / "alone", folder / "fsdp")


@pytest.mark.slow
def test_split_gradients_are_clipped_by_value(both: Both, tmp_path: Path) -> None:
    folder, ranks = both
    clipped = run_training(tmp_path / "clipped", *exact("transformer", 4), **BY_VALUE)
    by_norm = {**BY_VALUE, "gradient_clip_algorithm": "norm"}
    run_training(tmp_path / "normed", *exact("transformer", 4), **by_norm)
    assert len(clipped.recorder.rows) == len(ranks[0]["by_value"]) > 3
    for (_, actual), (_, expected) in zip(ranks[0]["by_value"], clipped.recorder.rows, strict=True):
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)
    same_weights(tmp_path / "clipped", folder / "by_value")
    with pytest.raises(AssertionError):  # or the test would say little
        same_weights(tmp_path / "normed", folder / "by_value")


@pytest.mark.slow
def test_validation_of_split_weights_adds_up_in_float64(both: Both) -> None:
    assert both[1][0]["sums"] == torch.float64


# a step's exchanges beside that of the gradients: in stage 1 of the codebook's statistics, of both
# gradients for the adaptive weight, and of LeCAM's means
USUAL = {"vqgan": {"all_reduce": 3}, "transformer": {}}
# every 20 steps: whether to end, for Ctrl-C (Lightning meets at a barrier first) and for the time
QUESTIONS = Counter(all_reduce=1, barrier=1, broadcast_object_list=1)
# each report: the means; of stage 1 also the codebook's usage, by torchmetrics
REPORT = {
    "vqgan": Counter(all_reduce=1, barrier=1, all_gather=2),
    "transformer": Counter(all_reduce=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_collectives_of_a_step(both: Both, kind: str) -> None:
    for rank in both[1]:
        actual, *end = rank[f"{kind}_counted"]
        assert end == [40, 143]  # a signal to one process ends all after the same step
        for step in range(5, 40):  # the discriminator starts at 2, the generator hears it at 3
            expected = Counter({"bucket 0": 1}) + Counter(USUAL[kind])
            if step % 20 == 0:
                expected += QUESTIONS
            if step % 10 == 0 and kind == "vqgan":
                expected += Counter(broadcast=1)  # latents for codes that nobody uses
            if (step + 1) % 30 == 0:
                expected += REPORT[kind]
            assert actual[step] == expected, step


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_batches_between_the_steps_exchange_no_gradients(both: Both, kind: str) -> None:
    for rank in both[1]:
        batches = rank[kind][1]
        assert [batch["bucket 0"] for batch in batches] == [0, 1] * 5
        for between in batches[::2]:
            assert set(between) <= {"barrier", "all_reduce", "all_gather"}


@pytest.mark.parametrize("step", [0, 2, 5])  # before the discriminator's start, then, afterwards
@pytest.mark.parametrize("quantizer", ["vector", "gumbel", "finite_scalar"])
def test_every_weight_gets_a_gradient_that_other_ranks_wait_for(
    monkeypatch: pytest.MonkeyPatch, quantizer: str, step: int
) -> None:
    """Plain data-parallel training waits for all of them, and AdamW counts them."""
    levels = {"levels": [4, 4]} if quantizer == "finite_scalar" else {}
    module = vqgan_training(tiny_adversary("group"), tiny_vqgan(quantizer, **levels))
    without_trainer(module, step)
    monkeypatch.setattr("taming.training.vqgan.num_ranks", lambda: 2)
    backward(module, {"images": image_data().train_dataset.tensors["images"][:2]})
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    assert [name for name, p in trained.items() if p.grad is None] == []
    module.on_before_optimizer_step(None)
    skipped = {name for name, p in trained.items() if p.grad is None}
    discriminator = {name for name in trained if name.startswith("adversary.")}
    assert skipped == (discriminator if step < 2 else set())
