import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import alone, backward, run_training, token_data, transformer_training
from torch._dynamo.testing import CompileCounter

from taming.conditioning import ClassLabel, ImageCondition
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.vqgan import VQGAN


def test_validation_is_the_cross_entropy_of_all_tokens(tmp_path: Path) -> None:
    module, data = transformer_training(), token_data()
    result, recorder = run_training(tmp_path, module, data, max_steps=2)
    generator = ImageGenerator.from_pretrained(tmp_path / "model")
    indices, labels = data.val_items.tensors["indices"], data.val_items.tensors["labels"]
    tokens = indices.flatten(1)
    with torch.no_grad():
        logits = generator.logits(tokens, labels).double().numpy()
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_p, tokens[..., None].numpy(), -1).mean()
    train_loss = recorder.column("train/loss")[-1][1]
    expected = {
        "val/loss": nats,
        "val/bits_per_token": nats / math.log(2),
        "val/perplexity": math.exp(nats),
        "val/gap": nats - train_loss,
    }
    assert result.metrics == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_run_writes_samples_and_a_generator_with_its_tokenizer(tmp_path: Path) -> None:
    module = transformer_training()
    tokenizer = module.generator.tokenizer.to_saved().fingerprint()
    assert not any("tokenizer" in name for name in module.state_dict())
    run_training(tmp_path, module, token_data(), max_steps=3)
    assert (tmp_path / "grids" / "samples_0000003.png").stat().st_size > 0
    for path in (tmp_path, tmp_path / "model", tmp_path / "checkpoints" / "last.ckpt"):
        assert VQGAN.from_pretrained(path).to_saved().fingerprint() == tokenizer  # not trained
        images = ImageGenerator.from_pretrained(path).sample(2, torch.tensor([0, 2]), seed=1)
        assert images.shape == (2, 3, 16, 16)


def test_the_gap_is_to_the_training_loss_since_the_last_report(tmp_path: Path) -> None:
    module = transformer_training()
    losses: list[float] = []
    remember = module.remember

    def kept(numbers: Any) -> None:
        losses.extend(value.item() for name, value in numbers.items() if name == "loss")
        remember(numbers)

    module.remember = kept  # type: ignore[method-assign]
    changes = {"max_steps": 7, "val_check_interval": 3, "log_every_n_steps": 3}
    _, recorder = run_training(tmp_path, module, token_data(), **changes)
    since = {3: losses[:3], 6: losses[3:6], 7: losses[6:]}  # at a report: that report's
    validated = dict(recorder.column("val/loss"))
    assert validated.keys() == since.keys()
    for at, gap in recorder.column("val/gap"):
        mean = sum(since[at]) / len(since[at])
        assert gap == pytest.approx(validated[at] - mean, abs=1e-5)
    reported = dict(recorder.column("train/loss"))
    assert reported == pytest.approx({at: sum(since[at]) / 3 for at in (3, 6)}, abs=1e-5)


def test_a_transformer_learns_what_repeats(tmp_path: Path) -> None:
    module, data = transformer_training(), token_data()
    data.items.tensors["indices"] = torch.full((10, 8, 8), 3)
    data.val_items.tensors["indices"] = torch.full((7, 8, 8), 3)
    changes = {"max_steps": 30, "val_check_interval": 30, "ema_decay": None}
    result, recorder = run_training(tmp_path, module, data, **changes)
    losses = [value for _, value in recorder.column("train/loss")]
    assert losses[0] == pytest.approx(math.log(8), abs=0.05)  # the uniform guess
    assert max(losses[-1], result.metrics["val/loss"]) < 0.5


def test_pkeep_replaces_inputs_and_never_targets() -> None:
    module = alone(transformer_training(pkeep=0.75))
    tokens = torch.full((200, 64), 3)
    seen: list[torch.Tensor] = []
    logits = module._token_logits
    module._token_logits = lambda *args: seen.append(args[1]) or logits(*args)
    labels = torch.zeros(200, dtype=torch.int64)
    module.conditioning.dropout = 0.0
    module.eval()
    loss = backward(module, {"indices": tokens.unflatten(1, (8, 8)), "labels": labels})["loss"]
    changed = (seen[0] != tokens).float().mean().item()
    assert changed == pytest.approx(0.25 * 7 / 8, abs=0.01)  # one in eight is what it was
    assert len(seen[0].unique()) == 8
    with torch.no_grad():  # all targets are 3: the loss is that of predicting 3
        prompt = module.conditioning.prompt(labels, 200)
        expected = -logits(prompt.prefix, seen[0]).log_softmax(-1)[..., 3].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert transformer_training()._disturbed(tokens) is tokens


@pytest.mark.parametrize("as_context", [False, True])
def test_conditions_that_are_images(tmp_path: Path, as_context: bool) -> None:
    condition = ImageCondition(4, (8, 8), as_context=as_context)
    module = transformer_training(condition, positions="sinusoidal_2d")
    data = token_data()
    for items in (data.items, data.val_items):
        items.tensors["condition_indices"] = torch.randint(4, (len(items), 8, 8))
    result, _ = run_training(tmp_path, module, data, max_steps=2)
    assert (tmp_path / "grids" / "samples_0000002.png").stat().st_size > 0
    model = ImageGenerator.from_pretrained(tmp_path / "model")
    cells = data.val_items.tensors["condition_indices"]
    maps = model.require_condition_tokenizer().decode(cells)
    assert model.sample(2, maps[:2], seed=0).shape == (2, 3, 16, 16)
    # the validation loss is that of these conditions, and not of others
    tokens = data.val_items.tensors["indices"].flatten(1)
    with torch.no_grad():
        losses = [
            -model.logits(tokens, conditions).log_softmax(-1).gather(2, tokens[..., None]).mean()
            for conditions in (maps, cells, cells.flip(0))
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
        run_training(tmp_path, transformer_training(), data, max_steps=1)


@pytest.mark.compile
def test_compiled_training_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()  # stands for the compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    gradients, compilations = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        # no dropout, which compiled code draws differently
        module = alone(transformer_training(compile=compiled)).eval()
        batch = {"indices": torch.arange(128).reshape(2, 8, 8) % 8, "labels": torch.tensor([0, 1])}
        for _ in range(2):
            backward(module, batch)
        gradients.append(module.transformer.head.weight.grad)
        compilations.append(counter.frame_count)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert compilations == [0, 1]  # the whole transformer at once, and once


def test_checkpointing_changes_no_gradient() -> None:
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        module = alone(transformer_training(checkpointing=checkpointing))
        assert module.transformer.checkpointing is checkpointing
        backward(module, {"indices": torch.full((2, 8, 8), 1), "labels": torch.tensor([0, 1])})
        found.append([p.grad for p in module.transformer.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
