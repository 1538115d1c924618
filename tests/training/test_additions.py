"""A quantizer and a loss term of a user's own, added where docs/architecture.md says."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import image_data, optimizer_config, run_training, tiny_vqgan

from taming.quantizers import KINDS, Quantizer
from taming.quantizers.gradient import straight_through
from taming.tokenizer import VQGAN
from taming.training import HealthWatch, VQGANTraining, finetuned_vqgan


class SignQuantizer(Quantizer):
    """Keeps the sign of each channel."""

    def __init__(self, *, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.codebook_size, self.codebook_dim = codebook_size, codebook_dim

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        indices = ((rows > 0) << torch.arange(self.codebook_dim)).sum(1)
        losses = {"sign_loss": (rows.abs() - 1).square().mean()}
        return straight_through(rows, self.codes_of(indices)), indices, losses

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        return (indices[..., None] >> torch.arange(self.codebook_dim) & 1) * 2.0 - 1


def mean_difference(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return (reconstructions.mean() - images.mean()).abs()


class WithAnotherTerm(VQGANTraining):
    def loss_terms(self) -> Any:
        return {**super().loss_terms(), "mean_loss": (3.0, mean_difference)}


def test_custom_quantizer_and_loss_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(KINDS, "sign", SignQuantizer)
    vqgan = tiny_vqgan("sign", codebook_size=16)
    module = WithAnotherTerm(vqgan, None, None, optimizer=optimizer_config())
    watch = HealthWatch(min_codebook_usage=1.01, patience=1)
    changes: dict[str, Any] = {"max_steps": 2, "monitor": "val/mean_loss", "callbacks": [watch]}
    with caplog.at_level(logging.WARNING, "taming"):
        run = run_training(tmp_path, module, image_data(), **changes)
    assert "codebook is collapsing" in caplog.text and Quantizer.advice in caplog.text
    for part in ("train", "val"):
        pixel, mean, whole = (
            run.recorder.column(f"{part}/{name}_loss")[-1][1]
            for name in ("pixel", "mean", "reconstruction")
        )
        assert mean > 0 and whole == pytest.approx(pixel + 3 * mean, rel=1e-5)
    assert run.recorder.column("train/sign_loss")
    trained = VQGAN.from_pretrained(tmp_path)
    quantized = trained.quantizer(torch.randn(2, 4, 3, 3))
    assert torch.equal(trained.quantizer.lookup(quantized.indices), quantized.quantized)
    other = tiny_vqgan("sign", codebook_size=32, codebook_dim=5)
    assert finetuned_vqgan(trained.to_saved(), "whole", other).codebook_size == 16
