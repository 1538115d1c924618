"""A tokenizer's encoder and decoder for other programs: `torch.export`, and ONNX.

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
    """Images `(b c H W)` in [-1, 1] to codes `(b h w)`."""

    def __init__(self, vqgan: VQGAN) -> None:
        super().__init__()
        self.vqgan = vqgan

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.vqgan.quantizer(self.vqgan.encode_latents(images)).indices


class _Decoder(nn.Module):
    """Codes `(b h w)` to images `(b c H W)`: the decoder's raw output, codes are not checked."""

    def __init__(self, vqgan: VQGAN) -> None:
        super().__init__()
        self.vqgan = vqgan

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.vqgan.decode_quantized(self.vqgan.quantizer.lookup(indices))


def export_tokenizer(vqgan: VQGAN, directory: str | Path, *, onnx: bool = False) -> list[Path]:
    """Writes `encoder.pt2` and `decoder.pt2`, and `.onnx` beside them, for any number of images.

    The images are of the model's own resolution. Each file is loaded again and has to compute, for
    another number of images than it was traced with, what the model does.

    Args:
        vqgan: the model; it is exported as in evaluation mode, on its device, in its dtype.
        directory: where to write.
        onnx: whether to write ONNX files too (`pip install 'taming[onnx]'`).

    Returns:
        The files.

    Raises:
        UserError: if the directory cannot be written, ONNX is not installed, or a file computes
            something else.
    """
    directory, weight = Path(directory).expanduser(), vqgan.last_layer
    size = (vqgan.image_channels, *vqgan.resolution)
    images = torch.rand(3, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    images = images.to(weight)
    written = []
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
            _check(path, torch.export.load(path).module(), inputs, expected)
            written.append(path)
            if onnx:
                written.append(_write_onnx(program, path.with_suffix(".onnx"), inputs, expected))
    return written


def _write_onnx(program: Any, path: Path, inputs: torch.Tensor, expected: torch.Tensor) -> Path:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (PyTorch needs it)
    except ImportError as error:
        raise UserError(f"onnx=True needs {error.name}: pip install 'taming[onnx]'.") from error

    torch.onnx.export(program, f=path, dynamo=True, external_data=False, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (argument,) = session.get_inputs()

    def run(inputs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {argument.name: inputs.cpu().numpy()})[0])

    _check(path, run, inputs, expected.cpu())
    return path


def _check(
    path: Path,
    function: Callable[[torch.Tensor], torch.Tensor],
    inputs: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    """Compares a file with the model: of codes 1 in 1,000 may differ, where two are as near."""
    found = function(inputs)
    if expected.is_floating_point():
        same = torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    else:
        same = bool((found == expected).float().mean() >= 0.999)
    if not same:
        raise UserError(f"{path} does not compute what the model does: do not use it.")
