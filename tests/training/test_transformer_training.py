import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import (
    FakeData,
    run_training,
    token_data,
    trainer_config,
    transformer_training,
)
from torch._dynamo.testing import CompileCounter

from taming.conditioning import ClassLabel, ImageCondition
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.training import TransformerTraining
from taming.vqgan import VQGAN


def test_validation_is_the_cross_entropy_of_all_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, data = transformer_training(max_steps=2), token_data()
    config = trainer_config(max_steps=2, val_every=2)
    result, recorder = run_training(tmp_path, module, data, config)
    generator = ImageGenerator.from_pretrained(tmp_path / "model")
    indices, labels = data.val_items.tensors["indices"], data.val_items.tensors["labels"]
    tokens = indices.flatten(1)
    with torch.no_grad():
        logits = generator.logits(tokens, labels).double().numpy()
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_p, tokens[..., None].numpy(), -1).mean()
    metrics = result.metrics
    assert metrics["val/loss"] == pytest.approx(nats, rel=1e-6)
    assert metrics["val/bits_per_token"] == pytest.approx(nats / math.log(2), rel=1e-6)
    assert metrics["val/perplexity"] == pytest.approx(math.exp(nats), rel=1e-6)
    train_loss = recorder.column("train/loss")[-1][1]
    assert metrics["val/gap"] == pytest.approx(nats - train_loss, rel=1e-6)


def test_the_run_writes_samples_and_a_generator_with_its_tokenizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = transformer_training(max_steps=3)
    _, recorder = run_training(tmp_path, module, token_data(), trainer_config(max_steps=3))
    assert recorder.images == [("val/samples", 3)]
    assert (tmp_path / "grids" / "samples_0000003.png").stat().st_size > 0
    tokenizer = module.tokenizer.network
    assert isinstance(tokenizer, VQGAN)
    expected = tokenizer.to_saved().fingerprint()
    for path in (tmp_path, tmp_path / "model", tmp_path / "checkpoints" / "last.ckpt"):
        assert VQGAN.from_pretrained(path).to_saved().fingerprint() == expected
        images = ImageGenerator.from_pretrained(path).sample(2, torch.tensor([0, 2]), seed=1)
        assert images.shape == (2, 3, 16, 16)


def test_the_gap_is_to_the_training_loss_of_the_steps_before(tmp_path: Path) -> None:
    module = transformer_training(max_steps=7)
    losses: list[float] = []
    step = module.backward_losses

    def kept(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = step(batch)
        losses.append(found["loss"].item())
        return found

    module.backward_losses = kept  # type: ignore[method-assign]
    config = trainer_config(max_steps=7, val_every=3, log_every=5)  # reports at 1 and 5
    _, recorder = run_training(tmp_path, module, token_data(), config)
    since = {3: losses[1:3], 6: losses[5:6], 7: losses[5:7]}
    validated = dict(recorder.column("val/loss"))
    assert validated.keys() == since.keys()
    for at, gap in recorder.column("val/gap"):
        mean = sum(since[at]) / len(since[at])
        assert gap == pytest.approx(validated[at] - mean, abs=1e-5)
    reported = dict(recorder.column("train/loss"))  # and the reports are what they were
    assert reported == pytest.approx({1: losses[0], 5: sum(losses[1:5]) / 4}, abs=1e-5)


def test_the_tokenizer_is_not_trained(tmp_path: Path) -> None:
    module = transformer_training()
    before = module.tokenizer.network.to_saved().fingerprint()  # type: ignore[operator]
    run_training(tmp_path, module, token_data(), trainer_config(max_steps=2, val_every=2))
    assert module.tokenizer.network.to_saved().fingerprint() == before  # type: ignore[operator]
    assert not any("tokenizer" in name for name in module.state_dict())


def test_a_transformer_learns_what_repeats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = transformer_training(max_steps=30, num_samples=0, ema_decay=None)
    data = token_data()
    data.items.tensors["indices"] = torch.full((10, 8, 8), 3)
    data.val_items.tensors["indices"] = torch.full((7, 8, 8), 3)
    _, recorder = run_training(tmp_path, module, data, trainer_config(max_steps=30, val_every=30))
    losses = [value for _, value in recorder.column("train/loss")]
    assert losses[0] == pytest.approx(math.log(8), abs=0.05)  # the uniform guess
    assert losses[-1] < 0.5
    assert recorder.column("val/loss")[-1][1] < 0.5


def test_pkeep_replaces_inputs_and_never_targets() -> None:
    torch.manual_seed(0)
    module = transformer_training(pkeep=0.75)
    tokens = torch.full((200, 64), 3)
    seen: list[torch.Tensor] = []
    logits = module._token_logits
    module._token_logits = lambda *args: seen.append(args[1]) or logits(*args)  # type: ignore
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]
    labels = torch.zeros(200, dtype=torch.int64)
    batch = {"indices": tokens.unflatten(1, (8, 8)), "labels": labels}
    losses = module.backward_losses(batch)
    changed = (seen[0] != tokens).float().mean().item()
    assert changed == pytest.approx(0.25 * 7 / 8, abs=0.01)  # one in eight is what it was
    assert len(seen[0].unique()) == 8
    # all targets are 3: the loss is that of predicting 3
    with torch.no_grad():
        prompt = module.conditioning.prompt(labels, 200)
        module.eval()
        expected = -logits(prompt.prefix, seen[0]).log_softmax(-1)[..., 3].mean()
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert transformer_training()._disturbed(tokens) is tokens


@pytest.mark.parametrize("as_context", [False, True])
def test_conditions_that_are_images(tmp_path: Path, as_context: bool) -> None:
    torch.manual_seed(0)
    condition = ImageCondition(4, (8, 8), as_context=as_context)
    module = transformer_training(
        max_steps=2, num_samples=2, condition=condition, positions="sinusoidal_2d", ema_decay=None
    )
    data = token_data()
    for items in (data.items, data.val_items):
        items.tensors["condition_indices"] = torch.randint(4, (len(items), 8, 8))
    result, recorder = run_training(tmp_path, module, data, trainer_config(max_steps=2))
    assert recorder.images == [("val/samples", 2)]
    model = ImageGenerator.from_pretrained(tmp_path / "model")
    cells = data.val_items.tensors["condition_indices"]
    maps = model.condition_tokenizer.decode(cells)
    assert model.sample(2, maps[:2], seed=0).shape == (2, 3, 16, 16)
    # the validation loss is that of these conditions, and not of others
    tokens = data.val_items.tensors["indices"].flatten(1)
    with torch.no_grad():
        losses = [
            -model.logits(tokens, asked_for).log_softmax(-1).gather(2, tokens[..., None]).mean()
            for asked_for in (maps, cells, cells.flip(0))
        ]
    assert result.metrics["val/loss"] == pytest.approx(losses[0].item(), rel=1e-5)
    assert losses[0] == losses[1] and abs(losses[0] - losses[2]) > 1e-6


def test_unknown_labels_are_refused_while_they_are_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*arguments: object) -> None:
        raise AssertionError("the batch is on its device, and to look at it is to wait for it")

    monkeypatch.setattr(ClassLabel, "prompt", too_late)
    data = token_data()
    data.items.tensors["labels"] = torch.full((10,), 3)
    with pytest.raises(UserError, match=r"class label 3 does not exist in this model.*0 to 2"):
        run_training(tmp_path, transformer_training(), data, trainer_config(max_steps=1))


@pytest.mark.compile
def test_compiled_training_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()  # stands for the compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    gradients, compilations = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = transformer_training(compile=compiled, ema_decay=None)
        module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]
        module.eval()  # no dropout, which compiled code draws differently
        batch = {"indices": torch.arange(128).reshape(2, 8, 8) % 8, "labels": torch.tensor([0, 1])}
        for _ in range(2):
            module.backward_losses(batch)
        gradients.append(module.transformer.head.weight.grad)
        compilations.append(counter.frame_count)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert compilations == [0, 1]  # the whole transformer at once, and once


def memorizing(**changes: Any) -> tuple[TransformerTraining, FakeData]:
    """A training that learns by heart what makes validation worse."""
    torch.manual_seed(0)
    module = transformer_training(num_samples=0, ema_decay=None, patience=2, **changes)
    data = token_data()
    data.items.tensors["indices"] = torch.full((10, 8, 8), 3)
    data.val_items.tensors["indices"] = torch.full((7, 8, 8), 5)
    return module, data


def test_overfitting_reaches_user_and_trackers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, data = memorizing(max_steps=6)
    _, recorder = run_training(tmp_path, module, data, trainer_config(val_every=1))
    losses = [value for _, value in recorder.column("val/loss")]
    assert losses == sorted(losses)  # the first is the best
    ((text, step),) = recorder.alerts
    assert step == 3 and text.startswith("overfitting: since step 1 the validation loss has risen")
    assert f"from {losses[0]:.4f} to {losses[2]:.4f}" in text
    assert "warning, step 3: overfitting" in caplog.text


def test_training_that_gets_better_is_no_overfitting(tmp_path: Path) -> None:
    module, data = memorizing(max_steps=6)
    data.val_items.tensors["indices"] = torch.full((7, 8, 8), 3)
    _, recorder = run_training(tmp_path, module, data, trainer_config(val_every=1))
    assert recorder.alerts == []


def test_overfitting_is_watched_across_a_resume(tmp_path: Path) -> None:
    run_training(tmp_path, *memorizing(max_steps=2), trainer_config(val_every=1))
    last = tmp_path / "checkpoints" / "last.ckpt"
    module, data = memorizing(max_steps=6)
    config = trainer_config(val_every=1)
    _, recorder = run_training(tmp_path, module, data, config, resume_from=last)
    ((text, step),) = recorder.alerts
    assert step == 3 and "since step 1" in text


def test_checkpointing_is_a_switch() -> None:
    assert transformer_training(checkpointing=True).transformer.checkpointing
    assert not transformer_training().transformer.checkpointing


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="pkeep must be more than 0 and at most 1, not 0"):
        transformer_training(pkeep=0.0)
    with pytest.raises(UserError, match="num_samples must be at least 0, and patience at least 1"):
        transformer_training(patience=0)
