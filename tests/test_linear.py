import pytest
import torch
from torch import nn

from taming.linear import FEW_ROWS, FEW_ROWS_COMPILED, Linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(1,), (1, 1), (2, 1), (3, 4), (FEW_ROWS,), (FEW_ROWS + 1,), (5, 7), (0,), (2, 0), ()]
)
def test_it_equals_that_of_pytorch(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape, 24)
    ours = Linear(24, 40, bias=bias)
    theirs = nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        assert ours(x).is_contiguous()
        half = ours.bfloat16()(x.bfloat16())
        assert half.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert ours(x).dtype == torch.bfloat16


def test_gradients_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    ours = Linear(24, 40)
    x = torch.randn(2, 24, requires_grad=True)
    ours(x).square().sum().backward()
    output = x.detach() @ ours.weight.detach().mT + ours.bias.detach()
    torch.testing.assert_close(x.grad, 2 * output @ ours.weight.detach())
    torch.testing.assert_close(ours.weight.grad, 2 * output.mT @ x.detach())


@pytest.mark.parametrize("num_rows", [1, 2, FEW_ROWS, FEW_ROWS + 1, 64])
def test_inference_does_without_the_blas_of_pytorch(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: called.append(args))
    with torch.no_grad():
        Linear(24, 40)(torch.randn(num_rows, 24))
    assert called == []
    Linear(24, 40)(torch.randn(num_rows, 24))
    assert len(called) == 1


def test_without_onednn_many_rows_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.linear.HAS_ONEDNN", False)
    ours = Linear(24, 40)
    x = torch.randn(FEW_ROWS_COMPILED + 1, 24)
    expected = ours(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), expected)
        torch.testing.assert_close(ours(x[:9]), expected[:9])


def test_compiled_it_equals_itself() -> None:
    torch.manual_seed(0)
    ours = Linear(24, 40)
    compiled = torch.compile(ours, fullgraph=True, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        for num_rows in (2, FEW_ROWS + 1, FEW_ROWS_COMPILED + 1):
            x = torch.randn(num_rows, 24)
            torch.testing.assert_close(compiled(x), ours(x))
