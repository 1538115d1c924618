"""Exports a tokenizer's encoder and decoder with `torch.export` and to ONNX.

from taming.interop.export import export_tokenizer
export_tokenizer(taming.VQGAN.from_pretrained("outputs/my_vqgan"), "outputs/exported")
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError, writing
from taming.tokenizer import VQGAN

__all__ = ["export_tokenizer"]


class _Encoder(nn.Module):
    """Images `(b c H W)` in [-1, 1] to codebook indices `(b h w)`."""

    def __init__(self, vqgan: VQGAN) -> None:
        super().__init__()
        self.vqgan = vqgan

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.vqgan.quantizer(self.vqgan.encode_latents(images)).indices


class _Decoder(nn.Module):
    """Codebook indices `(b h w)` to images `(b c H W)`, the decoder's raw output.

    Indices are not checked.
    """

    def __init__(self, vqgan: VQGAN) -> None:
        super().__init__()
        self.vqgan = vqgan

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.vqgan.decode_quantized(self.vqgan.quantizer.lookup(indices))


def export_tokenizer(vqgan: VQGAN, directory: str | Path, *, onnx: bool = False) -> list[Path]:
    """Writes `encoder.pt2` and `decoder.pt2`, and optionally `.onnx` files.

    The files take any number of images of the model's resolution. Each file is loaded again and
    compared with the model on another number of images.

    Args:
        vqgan: the model. It is exported in evaluation mode, on its device and in its dtype.
        directory: where to write.
        onnx: whether to write ONNX files too (`pip install 'taming[onnx]'`).

    Returns:
        The paths of the files.

    Raises:
        UserError: if the directory cannot be written, ONNX is not installed, or a file does not
            reproduce the model.
    """
    directory, weight = Path(directory).expanduser(), vqgan.last_layer
    size = (vqgan.image_channels, *vqgan.resolution)
    images = torch.rand(3, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    images = images.to(weight)
    paths = []
    with evaluation_mode(vqgan), torch.no_grad(), writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        indices = vqgan.encode(images)
        parts = {
            "encoder": (_Encoder(vqgan), images, indices),
            "decoder": (_Decoder(vqgan), indices, vqgan.decode(indices)),
        }
        for name, (module, inputs, expected) in parts.items():
            batch = {0: torch.export.Dim("batch")}
            program = torch.export.export(module, (inputs[:2],), dynamic_shapes=(batch,))
            path = directory / f"{name}.pt2"
            torch.export.save(program, path)
            _compare(path, torch.export.load(path).module(), inputs, expected)
            paths.append(path)
            if onnx:
                paths.append(_export_onnx(program, path.with_suffix(".onnx"), inputs, expected))
    return paths


def _export_onnx(program: Any, path: Path, inputs: torch.Tensor, expected: torch.Tensor) -> Path:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise UserError(f"onnx=True needs {error.name}: pip install 'taming[onnx]'.") from error

    torch.onnx.export(program, f=path, dynamo=True, external_data=False, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (argument,) = session.get_inputs()

    def run(inputs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {argument.name: inputs.cpu().numpy()})[0])

    _compare(path, run, inputs, expected.cpu())
    return path


def _compare(
    path: Path,
    function: Callable[[torch.Tensor], torch.Tensor],
    inputs: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    """Compares a file with the model. Near ties may change 1 index in 1,000."""
    output = function(inputs)
    if expected.is_floating_point():
        matches = torch.allclose(output, expected, rtol=1e-3, atol=1e-4)
    else:
        matches = bool((output == expected).float().mean() >= 0.999)
    if not matches:
        raise UserError(f"{path} does not reproduce the model. Do not use it.")
