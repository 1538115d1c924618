"""Exported files reproduce the tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_vqgan

from taming.interop.export import export_tokenizer
from taming.runtime.errors import UserError

KINDS: dict[str, dict[str, Any]] = {
    "vector": {"codebook_size": 8, "codebook_dim": 4, "cosine": True, "entropy_weight": 0.1},
    "finite_scalar": {"levels": [4, 3]},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_files_reproduce_the_model(tmp_path: Path, kind: str) -> None:
    vqgan = tiny_vqgan(quantizer={"kind": kind, **KINDS[kind]}, attention_resolutions=[2]).train()
    files = export_tokenizer(vqgan, tmp_path / "exported", onnx=kind == "vector")
    assert vqgan.training
    names = ["encoder.pt2", "encoder.onnx", "decoder.pt2", "decoder.onnx"]
    assert [file.name for file in files] == (names if kind == "vector" else names[::2])
    images = torch.rand(5, 3, 4, 6) * 2 - 1  # the graphs were traced with other numbers of images
    indices = torch.export.load(tmp_path / "exported" / "encoder.pt2").module()(images)
    assert torch.equal(indices, vqgan.encode(images))
    decoded = torch.export.load(tmp_path / "exported" / "decoder.pt2").module()(indices)
    assert torch.allclose(decoded, vqgan.eval().decode(indices), atol=1e-5)
    if kind == "vector":
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "exported" / "encoder.onnx")
        (codes,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        assert codes.tolist() == indices.tolist()


def test_a_file_that_does_not_reproduce_the_model_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vqgan = tiny_vqgan()
    decode = vqgan.decode
    monkeypatch.setattr(vqgan, "decode", lambda indices: decode(indices) + 0.01)
    with pytest.raises(UserError, match=r"decoder\.pt2 does not reproduce the model"):
        export_tokenizer(vqgan, tmp_path)
