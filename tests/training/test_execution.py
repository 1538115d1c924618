"""Precision, memory format and compilation: what is chosen where nothing is set."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import changed, weights
from tiny_training import STAGES, ByConvolution, stage, tiny_adversary, vqgan_training

from taming.training import execution
from taming.training.execution import Execution, choose_execution

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO = ("auto", "auto", "auto")  # precision, channels_last, compile
PLAIN = Execution("32-true", False, False)
BF16 = Execution("bf16-mixed", False, False)
BATCH = {"images": torch.rand(2, 3, 16, 16)}


def choose(request: tuple[str, Any, Any], device: torch.device = CPU, **options: Any) -> Execution:
    precision, channels_last, compile = request
    module = vqgan_training(channels_last=channels_last, compile=compile)
    options = {"num_batches": 100, **options}
    choice = choose_execution(precision, module, lambda: BATCH, device, **options)
    assert (module.channels_last, module.compiled) == (choice.channels_last, choice.compile)
    return choice


@pytest.mark.parametrize(
    ("native", "capability", "expected"),
    [(True, (9, 0), "bf16-mixed"), (False, (7, 5), "16-mixed"), (False, (6, 1), "32-true")],
)
def test_default_precision_of_gpus(
    monkeypatch: pytest.MonkeyPatch, native: bool, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(execution, "has_bf16", lambda device: native)
    monkeypatch.setattr(execution, "device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose(AUTO, CUDA) == Execution(expected, channels_last=True, compile=False)
    assert choose(("32-true", False, True), CUDA) == Execution("32-true", False, True)


@pytest.mark.parametrize(
    "settings", [{"num_batches": 499}, {"num_batches": 9999, "num_processes": 2}]
)
def test_short_trainings_and_several_processes_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    monkeypatch.setattr(execution, "has_bf16", lambda device: True)
    monkeypatch.setattr(execution, "seconds_per_batch", None)
    assert choose(AUTO, **settings) == PLAIN


def timer(times: dict[Execution, float], tried: list[Execution]) -> Callable[..., float]:
    def seconds(*arguments: Any) -> float:
        tried.append(arguments[-1])
        return times[arguments[-1]]

    return seconds


def test_the_fastest_candidate_is_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = Execution("bf16-mixed", False, True)
    times = {PLAIN: 2.0, BF16: 1.0, Execution("bf16-mixed", True, False): 0.95, compiled: 0.5}
    tried: list[Execution] = []
    monkeypatch.setattr(execution, "seconds_per_batch", timer(times, tried))
    monkeypatch.setattr(execution, "has_bf16", lambda device: True)
    monkeypatch.setattr(execution, "can_compile", lambda device: True)
    with caplog.at_level(logging.INFO, "taming"):
        assert choose(AUTO, num_batches=4000) == compiled
    assert tried == list(times)
    announcement, line = caplog.messages  # the choice and its reason
    assert announcement == "timing a few batches"
    assert "bf16-mixed, compiled" in line and "bf16-mixed, channels_last 0.95" in line
    # without hardware for it, bfloat16 is not even tried; what is set stays
    tried.clear()
    times[Execution("32-true", True, False)] = 1.0
    monkeypatch.setattr(execution, "has_bf16", lambda device: False)
    assert choose(("auto", "auto", False), num_batches=4000) == Execution("32-true", True, False)
    assert tried == [PLAIN, Execution("32-true", True, False)]


def test_candidates_are_timed_from_five_minutes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Execution] = []
    monkeypatch.setattr(execution, "seconds_per_batch", timer({PLAIN: 0.5, BF16: 0.25}, tried))
    monkeypatch.setattr(execution, "has_bf16", lambda device: True)
    request = ("auto", False, False)
    with caplog.at_level(logging.INFO, "taming"):
        assert choose(request, num_batches=500) == PLAIN and tried == [PLAIN]
    assert "32-true (seconds per batch: 32-true 0.5), about 0:04:10 in all" in caplog.text
    assert choose(request, num_batches=600) == BF16


def test_compiling_is_for_long_trainings_and_small_gains_are_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = replace(PLAIN, compile=True)
    request, tried = ("32-true", False, "auto"), list[Execution]()
    times = {PLAIN: 0.5, compiled: 0.2}
    monkeypatch.setattr(execution, "seconds_per_batch", timer(times, tried))
    monkeypatch.setattr(execution, "can_compile", lambda device: True)
    assert choose(request, num_batches=3000) == PLAIN and compiled not in tried
    assert choose(request, num_batches=4000) == compiled
    times[compiled] = 0.46
    assert choose(request, num_batches=4000) == PLAIN


@pytest.mark.parametrize(("precision", "expected"), [
    ("bf16-mixed", "bf16-mixed"), ("16-mixed", "bf16-mixed"), ("32-true", "32-true"),
])  # fmt: skip
@pytest.mark.parametrize("native", [True, False])
def test_a_slow_or_replaced_precision_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, precision: str, expected: str, native: bool
) -> None:
    monkeypatch.setattr(execution, "has_bf16", lambda device: native)
    assert execution.supported_precision(precision, CPU) == expected
    emulates = not native and expected == "bf16-mixed"
    assert ("steps take 10 to 20 times as long" in caplog.text) == emulates
    assert ("CPU uses bf16-mixed instead" in caplog.text) == (precision == "16-mixed")


def test_other_precisions_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "seconds_per_batch", None)
    choice = choose(("64-true", "auto", "auto"), num_batches=4000)
    assert choice == Execution("64-true", False, False)


def test_the_step_that_is_timed_has_a_discriminator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "TIMED_SECONDS", 0.01)
    module = vqgan_training(tiny_adversary(start=1000))
    assert 0 < execution.seconds_per_batch(module, BATCH, CPU, PLAIN) < 60
    assert {"generator_loss", "discriminator_loss"} <= module._sums.keys()


def test_frozen_networks_are_copied_for_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep copy shares them: on a GPU they would stay on the CPU."""
    monkeypatch.setattr(execution, "TIMED_SECONDS", 0.01)
    monkeypatch.setattr(execution, "EAGER_FROM", 0.0)
    monkeypatch.setattr(execution, "WORTHWHILE", 1e9)  # it chooses no candidate
    monkeypatch.setattr(ByConvolution, "layouts", [])
    module = vqgan_training()
    module.perceptual = perceptual = ByConvolution()
    module.set_execution(channels_last="auto", compile=False)
    choose_execution("32-true", module, lambda: BATCH, CPU, num_batches=500)
    assert set(ByConvolution.layouts) == {torch.contiguous_format, torch.channels_last}
    weight: Any = perceptual.frozen.network.weight
    assert weight.is_contiguous()  # the training's own is as it was


@pytest.mark.parametrize("kind", STAGES)
def test_timing_leaves_the_training_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(execution, "TIMED_SECONDS", 0.01)
    monkeypatch.setattr(execution, "has_bf16", lambda device: True)
    module, data = stage(kind)
    before = weights(module)
    random_state = torch.get_rng_state()
    module.set_execution(channels_last="auto" if kind == "vqgan" else False, compile=False)
    monkeypatch.setattr(execution, "EAGER_FROM", 0.0)
    monkeypatch.setattr(execution, "WORTHWHILE", 1e9)
    with caplog.at_level(logging.INFO, "taming"):
        choose_execution("auto", module, data.first_batch, CPU, num_batches=500)
    assert "; bf16-mixed 0." in caplog.text
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not changed(module, before) and not module._sums and not module.compiled
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_failing_compiler_leaves_the_training_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_networks(self: Any) -> None:
        raise RuntimeError("No working C++ compiler actual\nand so on")

    module = vqgan_training(tiny_adversary())
    monkeypatch.setattr(type(module), "compile_networks", compile_networks)
    compiled = Execution("32-true", False, True)
    with caplog.at_level(logging.INFO, "taming"):
        assert execution.seconds_per_batch(module, BATCH, CPU, compiled) == float("inf")
    assert "one to four minutes" in caplog.messages[0]
    assert "No working C++ compiler actual" in caplog.text and "and so on" not in caplog.text
