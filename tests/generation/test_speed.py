"""How `auto` decides the precision and compilation of sampling."""

import logging

import pytest
import torch
from every_kind import CLASS, tiny
from tiny_models import tiny_vqgan

from taming.generation import Guidance, SamplingOptions, generator, speed
from taming.generation.speed import compiles, decide_compilation, in_bfloat16
from taming.transformer.orders import to_indices

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "faster", "width", "expected"),
    [
        ("cuda", True, 128, True),
        ("cuda", False, 1024, False),  # V100, T4
        ("cpu", True, 384, True),
        ("cpu", True, 383, False),
        ("cpu", False, 1024, False),
        ("mps", True, 1024, False),
    ],
)
def test_bfloat16_by_device_and_width(
    device: str, faster: bool, width: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "has_bf16", lambda device: faster and device.type != "mps")
    monkeypatch.setattr(speed, "multiplies_faster_in_bf16", lambda: faster)
    assert in_bfloat16(torch.device(device), width) == expected


@pytest.mark.parametrize(
    ("device", "num_sequences", "num_steps", "expected"),
    [
        ("cuda", 128, 20_000, True),
        ("cuda", 1, 19_999, False),
        ("cpu", 4, 20_000, True),
        ("cpu", 5, 10**6, False),
        ("cpu", 1, 19_999, False),
        ("mps", 1, 10**6, False),
    ],
)
def test_compilation_depends_on_the_number_of_steps(
    device: str, num_sequences: int, num_steps: int, expected: bool
) -> None:
    assert compiles(device, num_sequences, num_steps) == expected


def test_compilation_counts_the_steps_of_all_images_and_both_sequences_of_guidance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "can_compile", lambda device: True)

    def compiled(num_images: int, **settings: object) -> object:
        options = SamplingOptions(**{"compile": "auto", "batch_size": 4, **settings})
        return decide_compilation(options, CPU, (10, 20), num_images).compile

    assert compiled(400) is True and compiled(396) is False  # 100 batches of 200 tokens
    assert compiled(397) is True  # the last batch counts whole
    assert compiled(200, grid_size=(20, 20)) is True
    assert compiled(400, guidance=Guidance(2.0)) is False
    assert compiled(200, guidance=Guidance(2.0), batch_size=2) is True
    assert compiled(1, compile=True) is True and compiled(400, compile=False) is False
    monkeypatch.setattr(speed, "can_compile", lambda device: False)
    assert compiled(400) is False


def test_each_call_decides_for_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tiny(CLASS), []
    monkeypatch.setattr(speed, "compiles", lambda *sizes: bool(calls.append(sizes)))
    model.sample_tokens(3, options=SamplingOptions(seed=0, compile="auto"))
    model.sample_tokens(3, seed=0)  # nothing to decide
    assert calls == [("cpu", 3, model.num_tokens)] and model._sampler.compiled is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_decoder_in_bfloat16_gives_the_float32_images_except_for_rounding(
    device: str,
    dtype: speed.SamplingDtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = tiny_vqgan()
    model = tiny(CLASS, tokenizer=tokenizer).to(device)
    tokens = model.sample_tokens(5, seed=0)
    images, indices = model.decode(tokens), to_indices(tokens, model.grid_size)
    quantized = tokenizer.quantizer.lookup(indices)
    monkeypatch.setattr(speed, "in_bfloat16", lambda *sizes: True)
    with caplog.at_level(logging.INFO, "taming"):
        model.prepare_sampling(SamplingOptions(), dtype, 5)
    assert "transformer in bfloat16, not compiled; decoder in bfloat16" in caplog.text
    rounded = model.decode(tokens)
    assert rounded.dtype == torch.float32 and rounded.shape == images.shape
    assert 0 < (rounded - images).abs().mean() < 0.03  # of values up to 1
    assert torch.equal(tokenizer.quantizer.lookup(indices), quantized)
    monkeypatch.setattr(generator, "PIXELS_AT_ONCE", 2 * images[0, 0].numel())
    calls = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda x: calls.append(len(x)) or decode(x))
    torch.testing.assert_close(model.decode(tokens), rounded, atol=0.02, rtol=0)
    assert calls == [2, 2, 1]
