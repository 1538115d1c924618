import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import (
    Run,
    backward,
    run_training,
    token_data,
    transformer_training,
    without_trainer,
)
from torch._dynamo.testing import CompileCounter

from taming.conditioning import ClassLabel, ImageCondition
from taming.generation import ImageGenerator
from taming.tokenizer import VQGAN

Finished = Callable[..., Run]


def test_validation_is_the_cross_entropy_of_all_tokens(finished: Finished) -> None:
    run = finished("transformer")
    generator = ImageGenerator.from_pretrained(run.directory / "model")
    indices, labels = (run.data.val_dataset.tensors[name] for name in ("indices", "labels"))
    tokens = indices.flatten(1)
    with torch.no_grad():
        logits = generator.logits(tokens, labels).double().numpy()
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_p, tokens[..., None].numpy(), -1).mean()
    train_loss = run.recorder.column("train/loss")[-1][1]
    expected = {
        "val/loss": nats,
        "val/bits_per_token": nats / math.log(2),
        "val/perplexity": math.exp(nats),
        "val/gap": nats - train_loss,
    }
    assert run.result.metrics == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_run_writes_samples_and_a_generator_with_its_tokenizer(finished: Finished) -> None:
    directory, module, *_ = finished("transformer")
    assert not any("tokenizer" in name for name in module.state_dict())
    assert (directory / "grids" / "samples_0000008.png").stat().st_size > 0
    tokenizer = module.generator.tokenizer.to_saved().fingerprint()
    for path in (directory, directory / "model", directory / "checkpoints" / "last.ckpt"):
        assert VQGAN.from_pretrained(path).to_saved().fingerprint() == tokenizer
        images = ImageGenerator.from_pretrained(path).sample(2, torch.tensor([0, 2]), seed=1)
        assert images.shape == (2, 3, 16, 16)


def test_the_gap_is_to_the_training_loss_since_the_last_report(tmp_path: Path) -> None:
    module = transformer_training()
    losses: list[float] = []
    remember = module.remember

    def keep_metrics(metrics: Any) -> None:
        losses.extend(value.item() for name, value in metrics.items() if name == "loss")
        remember(metrics)

    module.remember = keep_metrics
    changes = {"max_steps": 7, "val_check_interval": 3, "log_every_n_steps": 3}
    recorder = run_training(tmp_path, module, token_data(), **changes).recorder
    since = {3: losses[:3], 6: losses[3:6], 7: losses[6:]}  # at a report: that report's
    validated = dict(recorder.column("val/loss"))
    assert validated.keys() == since.keys()
    for at, gap in recorder.column("val/gap"):
        mean = sum(since[at]) / len(since[at])
        assert gap == pytest.approx(validated[at] - mean, abs=1e-5)
    reported = dict(recorder.column("train/loss"))
    assert reported == pytest.approx({at: sum(since[at]) / 3 for at in (3, 6)}, abs=1e-5)


def test_a_transformer_learns_constant_tokens(tmp_path: Path) -> None:
    data = token_data()
    for items in (data.train_dataset, data.val_dataset):
        items.tensors["indices"] = torch.full((len(items), 8, 8), 3)
    changes = {"max_steps": 30, "val_check_interval": 30, "ema_decay": None}
    run = run_training(tmp_path, transformer_training(), data, **changes)
    losses = [value for _, value in run.recorder.column("train/loss")]
    assert losses[0] == pytest.approx(math.log(8), abs=0.05)  # the uniform guess
    assert max(losses[-1], run.result.metrics["val/loss"]) < 0.5


def test_pkeep_replaces_inputs_and_never_targets() -> None:
    module = without_trainer(transformer_training(ClassLabel(3), pkeep=0.75)).eval()
    tokens = torch.full((200, 64), 3)
    inputs: list[torch.Tensor] = []
    losses = module._token_losses
    module._token_losses = lambda *args, **kwargs: inputs.append(args[1]) or losses(*args, **kwargs)
    labels = torch.zeros(200, dtype=torch.int64)
    loss = backward(module, {"indices": tokens.unflatten(1, (8, 8)), "labels": labels})["loss"]
    changed = (inputs[0] != tokens).float().mean().item()
    assert changed == pytest.approx(0.25 * 7 / 8, abs=0.01)  # one in eight is what it was
    assert len(inputs[0].unique()) == 8
    with torch.no_grad():  # all targets are 3: the loss is that of predicting 3
        prompt = module.conditioning.prompt(labels, 200)
        logits = module.transformer.token_logits(prompt.prefix, inputs[0])
        expected = -logits.log_softmax(-1)[..., 3].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("as_context", [False, True])
def test_image_conditions(tmp_path: Path, as_context: bool) -> None:
    condition = ImageCondition(4, (8, 8), as_context=as_context)
    module = transformer_training(condition, positions="sinusoidal_2d")
    data = token_data()
    for items in (data.train_dataset, data.val_dataset):
        items.tensors["condition_indices"] = torch.randint(4, (len(items), 8, 8))
    result = run_training(tmp_path, module, data, max_steps=2).result
    assert (tmp_path / "grids" / "samples_0000002.png").stat().st_size > 0
    model = ImageGenerator.from_pretrained(tmp_path / "model")
    cells = data.val_dataset.tensors["condition_indices"]
    maps = model.require_condition_tokenizer().decode(cells)
    # the validation loss is that of these conditions, and not of others
    tokens = data.val_dataset.tensors["indices"].flatten(1)
    with torch.no_grad():
        losses = [
            -model.logits(tokens, conditions).log_softmax(-1).gather(2, tokens[..., None]).mean()
            for conditions in (maps, cells, cells.flip(0))
        ]
    assert result.metrics["val/loss"] == pytest.approx(losses[0].item(), rel=1e-5)
    assert losses[0] == losses[1] and abs(losses[0] - losses[2]) > 1e-6


@pytest.mark.compile
@pytest.mark.parametrize("switch", ["checkpointing", "compile"])
def test_switches_of_speed_and_memory_change_no_gradient(
    monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    counter = CompileCounter()  # stands for the compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    batch = {"indices": torch.arange(128).reshape(2, 8, 8) % 8, "labels": torch.tensor([0, 1])}
    gradients = []
    for on in (False, True):
        torch.manual_seed(0)
        module = without_trainer(transformer_training(**{switch: on}))
        module.train(switch != "compile")  # compiled code draws dropout differently
        for _ in range(2):
            backward(module, batch)
        gradients.append([parameter.grad for parameter in module.transformer.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert counter.frame_count == (switch == "compile")  # the whole transformer at once, and once
    assert module.transformer.checkpointing is (switch == "checkpointing")
