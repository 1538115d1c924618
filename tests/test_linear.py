import pytest
import torch
from torch import nn

from taming.linear import FEW_ROWS, FEW_ROWS_COMPILED, WIDE, Linear


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2,), (FEW_ROWS + 1,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize(("width", "to_width"), [(24, 40), (WIDE, WIDE + 8), (WIDE + 8, WIDE)])
def test_gradients_are_those_of_pytorch(
    width: int, to_width: int, shape: tuple[int, ...], bias: bool
) -> None:
    torch.manual_seed(0)
    ours = Linear(width, to_width, bias=bias)
    theirs = nn.Linear(width, to_width, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = (
        torch.randn(width, *shape).movedim(0, -1).requires_grad_()
    )  # columns, not rows, lie together
    gradients = []
    for layer in (ours, theirs):
        output = layer(x)
        assert output.requires_grad
        of_first = torch.autograd.grad(
            output.square().sum(), [x, *layer.parameters()], create_graph=True
        )
        of_second = torch.autograd.grad(of_first[0].square().sum(), [x, layer.weight])
        gradients.append([*of_first, *of_second])
    for ours_, theirs_ in zip(*gradients, strict=True):
        scale = theirs_.abs().max()
        torch.testing.assert_close(ours_ / scale, theirs_ / scale, rtol=0.0, atol=1e-5)


def test_nothing_is_computed_for_what_is_frozen() -> None:
    ours = Linear(WIDE, WIDE).requires_grad_(False)
    x = torch.randn(FEW_ROWS + 1, WIDE, requires_grad=True)
    ours(x).sum().backward()
    assert x.grad is not None and ours.weight.grad is None and ours.bias.grad is None
    ours.bias.requires_grad_()
    ours(x.detach()).sum().backward()
    torch.testing.assert_close(ours.bias.grad, torch.full((WIDE,), FEW_ROWS + 1.0))
    assert ours.weight.grad is None


@pytest.mark.parametrize(
    ("num_rows", "width", "to_width", "left"),
    [
        (FEW_ROWS + 1, WIDE, WIDE, False),
        (FEW_ROWS, WIDE, WIDE, True),
        (FEW_ROWS + 1, WIDE - 1, WIDE, True),
        (FEW_ROWS + 1, WIDE, WIDE - 1, True),
    ],
)
def test_training_does_without_that_blas_where_layers_are_wide(
    num_rows: int, width: int, to_width: int, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: called.append(args))
    Linear(width, to_width)(torch.randn(num_rows, width))
    assert len(called) == left


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
    ours = Linear(WIDE, WIDE)
    x = torch.randn(FEW_ROWS_COMPILED + 1, WIDE)
    expected = ours(x).detach()
    monkeypatch.setattr("taming.linear.HAS_ONEDNN", False)
    torch.testing.assert_close(ours(x), expected)
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
    wide = Linear(WIDE, WIDE)
    x = torch.randn(FEW_ROWS + 1, WIDE)
    torch.testing.assert_close(torch.compile(wide, fullgraph=True, backend="aot_eager")(x), wide(x))
