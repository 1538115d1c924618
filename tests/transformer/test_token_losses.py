"""The cross-entropy in chunks equals that of all logits at once and stores one chunk only."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import perturb
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from taming.transformer import GPT, GPTConfig, loss

NUM_TOKENS, WIDTH, NUM_CODES = 48, 16, 40
CHUNKS = pytest.mark.parametrize("chunks", [1, 4, 5, 48])


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def inputs(dtype: torch.dtype) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, NUM_CODES, bias=False).to(dtype)
    features = torch.randn(3, 16, WIDTH, dtype=dtype, requires_grad=True)
    return head, features, torch.randint(NUM_CODES, (3, 16))


def use_chunks(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    tokens = -(-NUM_TOKENS // chunks)
    monkeypatch.setattr(loss, "MAX_LOGITS", tokens * NUM_CODES + NUM_CODES // 2)


@CHUNKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_gradients_equal_those_of_all_logits_at_once(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunks: int
) -> None:
    use_chunks(monkeypatch, chunks)
    head, features, tokens = inputs(dtype)
    expected = F.cross_entropy(head(features).flatten(0, 1), tokens.flatten(), reduction="none")
    losses = loss.token_losses(head, features, tokens, NUM_CODES)
    assert losses.dtype == dtype and losses.shape == tokens.shape
    torch.testing.assert_close(losses.flatten(), expected)
    upstream = torch.randn_like(losses)
    gradients = (
        torch.autograd.grad(values.flatten(), (features, head.weight), upstream.flatten())
        for values in (losses, expected)
    )
    for actual, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, reference)


@CHUNKS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_lose_no_accuracy_in_half_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunks: int
) -> None:
    """The head's gradients of all chunks are summed in float32."""
    head, features, tokens = inputs(torch.float64)
    loss.token_losses(head, features, tokens, NUM_CODES).mean().backward()
    errors = []
    for number in (1, chunks):
        use_chunks(monkeypatch, number)
        half_head, rounded, _ = inputs(torch.float32)
        half_head.load_state_dict(head.state_dict())
        with torch.no_grad():
            rounded.copy_(features)
        with torch.autocast("cpu", dtype):
            losses = loss.token_losses(half_head, rounded, tokens, NUM_CODES)
        assert losses.dtype == torch.float32
        scale = 2.0**12  # like a gradient scaler
        (scale * losses.mean()).backward()
        pairs = (rounded.grad, features.grad), (half_head.weight.grad, head.weight.grad)
        errors.append(
            [float((gradient / scale - exact).norm() / exact.norm()) for gradient, exact in pairs]
        )
    assert max(errors[0]) < 0.02
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


@pytest.mark.parametrize("training", [True, False])
def test_only_one_chunk_of_logits_is_stored(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    use_chunks(monkeypatch, chunks=8)
    head, features, tokens = inputs(torch.float32)
    saved_sizes: list[int] = []

    def record(tensor: Tensor) -> Tensor:
        saved_sizes.append(tensor.numel())
        return tensor

    with LargestTensor() as watch, torch.set_grad_enabled(training):
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            losses = loss.token_losses(head, features, tokens, NUM_CODES)
        if training:
            losses.mean().backward()
    assert max(saved_sizes, default=0) < NUM_TOKENS * NUM_CODES / 2
    assert watch.largest == max(NUM_TOKENS * WIDTH, NUM_CODES * WIDTH)  # features, or weights


def test_few_tokens_are_not_computed_twice() -> None:
    head, features, tokens = inputs(torch.float32)
    calls = []
    head.register_forward_hook(lambda *_: calls.append(None))
    loss.token_losses(head, features, tokens, NUM_CODES).mean().backward()
    assert len(calls) == 1


@pytest.mark.compile
@pytest.mark.parametrize("tie_head", [False, True])
def test_compiled_with_the_whole_transformer(
    monkeypatch: pytest.MonkeyPatch, tie_head: bool
) -> None:
    config = {"codebook_size": NUM_CODES, "num_prefix_ids": 2, "context_length": 17}
    shape = {"num_layers": 1, "num_heads": 2, "embed_dim": WIDTH, "tie_head": tie_head}
    model = GPT(GPTConfig(**config, **shape))
    perturb(model)
    prefix, tokens = torch.zeros(3, 1, dtype=torch.long), torch.randint(NUM_CODES, (3, 16))
    targets = torch.randint(NUM_CODES, (3, 16))
    logits = model.token_logits(prefix, tokens)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    for chunks in (1, 4):
        use_chunks(monkeypatch, chunks)
        torch.compiler.reset()
        compiled = torch.compile(model.token_losses, backend="aot_eager", fullgraph=True)
        for function in (model.token_losses, compiled):
            mean = function(prefix, tokens, targets=targets).mean()
            torch.testing.assert_close(mean, expected)
            actual = torch.autograd.grad(mean, list(model.parameters()))
            torch.testing.assert_close(actual, expected_gradients)
