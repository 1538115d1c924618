"""Full precision by PyTorch's older settings and by its newer, which nobody may mix."""

from collections.abc import Callable, Iterator

import pytest
import torch

from taming.runtime.contexts import evaluation_mode, full_precision

backends = torch.backends
OPERATIONS = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul)


def precisions() -> list[str]:
    return [operation.fp32_precision for operation in (*OPERATIONS, backends)]


@pytest.fixture(autouse=True)
def _settings_as_before() -> Iterator[None]:
    older = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    yield
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision(older[0])
    backends.cudnn.allow_tf32 = older[1]


def matmul() -> None:
    backends.cuda.matmul.fp32_precision = "tf32"


def everything(precision: str = "ieee") -> None:
    for operation in (*OPERATIONS, backends.cudnn.rnn):
        operation.fp32_precision = "none"  # as in a new process, where no test ran before
    backends.fp32_precision = precision


def older_then_newer() -> None:
    torch.set_float32_matmul_precision("high")
    backends.cuda.matmul.fp32_precision = "ieee"


@pytest.mark.parametrize(
    "choose", [matmul, everything, lambda: everything("tf32"), older_then_newer]
)
def test_a_process_may_use_the_newer_settings(choose: Callable[[], None]) -> None:
    choose()
    before = precisions()
    with full_precision():
        assert precisions()[:3] == ["ieee"] * 3
    assert precisions() == before


def test_settings_that_follow_the_global_one_still_do() -> None:
    everything("tf32")
    with full_precision():
        pass
    backends.fp32_precision = "ieee"
    assert precisions() == ["ieee"] * 4


@pytest.mark.parametrize("precision", ["high", "medium", "highest"])
def test_a_process_may_use_the_older_settings(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    backends.cudnn.allow_tf32 = True
    before = precisions()
    with full_precision():
        assert torch.get_float32_matmul_precision() == "highest"
        assert backends.cudnn.allow_tf32 is False
        assert backends.cuda.matmul.allow_tf32 is False
        assert precisions()[:3] == ["ieee"] * 3
    assert (torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32) == (precision, True)
    assert precisions() == before


def test_evaluation_mode_ends_even_with_an_error() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    with pytest.raises(ValueError, match="inside"), evaluation_mode(module):
        assert not any(part.training for part in module.modules())
        raise ValueError("inside")
    assert [part.training for part in module.modules()] == [True, True, False]
