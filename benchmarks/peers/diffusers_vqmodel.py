"""`VQModel` of diffusers, which is the same architecture; it comes without a training of its own.

Its training step is therefore the autoencoder's alone: forward, L1 and its quantizer's loss,
backward, Adam.
"""

from importlib.metadata import version
from typing import Any

import torch
from serve import autocast  # the file that runs this one


def build(settings: dict[str, Any], measurement: str, images: torch.Tensor) -> Any:
    """What is timed, and facts about it; see `serve.py`."""
    if measurement not in ("encode", "decode", "autoencoder_step"):
        return None
    model = vqmodel(settings).to(images.device)
    facts = {
        "versions": {"diffusers": version("diffusers")},
        "parameters": {"autoencoder": sum(p.numel() for p in model.parameters())},
    }
    if measurement == "autoencoder_step":
        return autoencoder_step(model.train(), settings, images), facts
    return inference(model.eval(), settings, images, measurement), facts


def vqmodel(settings: dict[str, Any]) -> Any:
    """The model with attention at the resolutions that the settings name."""
    import diffusers

    multipliers, resolution = settings["channel_multipliers"], settings["resolution"]
    kinds = [
        "Attn" if resolution >> level in settings["attention_resolutions"] else ""
        for level in range(len(multipliers))
    ]
    return diffusers.VQModel(
        down_block_types=[f"{kind}DownEncoderBlock2D" for kind in kinds],
        up_block_types=[f"{kind}UpDecoderBlock2D" for kind in reversed(kinds)],
        block_out_channels=[settings["base_channels"] * multiplier for multiplier in multipliers],
        layers_per_block=settings["num_residual_blocks"],
        latent_channels=settings["latent_channels"],
        sample_size=resolution,
        num_vq_embeddings=settings["codebook_size"],
        vq_embed_dim=settings["codebook_dim"],
        lookup_from_codebook=True,
    )


def inference(model: Any, settings: dict[str, Any], images: torch.Tensor, name: str) -> Any:
    """Encoding, or decoding of what that gives."""

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return model.quantize(model.encode(images).latents)[2][2]

    indices = encode()
    side = settings["resolution"] // 2 ** (len(settings["channel_multipliers"]) - 1)
    shape = (len(images), side, side, settings["codebook_dim"])

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return model.decode(indices, force_not_quantize=True, shape=shape).sample

    return encode if name == "encode" else decode


def autoencoder_step(model: Any, settings: dict[str, Any], images: torch.Tensor) -> Any:
    """Forward, L1 and commitment loss, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.5, 0.9))

    def step() -> torch.Tensor:
        with autocast(settings):
            output = model(images)
            loss = (output.sample - images).abs().mean() + output.commit_loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step
