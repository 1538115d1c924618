"""`VQModel` of diffusers, which is the same architecture; it comes without a training of its own.

Its training step is therefore the autoencoder's alone: forward, L1 and its quantizer's loss,
backward, Adam.
"""

import importlib
from importlib.metadata import version
from typing import Any

import torch
from serve import autocast  # type: ignore[import-not-found]  # the file that runs this one


def build(settings: dict[str, Any], measurement: str, images: torch.Tensor) -> Any:
    """What is timed, and facts about it; see `serve.py`."""
    calls = {"encode": _encode, "decode": _decode, "autoencoder_step": _autoencoder_step}
    if measurement not in calls:
        return None
    model = _model(settings).to(images.device)
    facts = {
        "versions": {"diffusers": version("diffusers")},
        "parameters": {"autoencoder": sum(p.numel() for p in model.parameters())},
    }
    return calls[measurement](model, settings, images), facts


def _model(settings: dict[str, Any]) -> Any:
    diffusers = importlib.import_module("diffusers")
    multipliers, resolution = settings["channel_multipliers"], settings["resolution"]
    with_attention = [
        resolution >> level in settings["attention_resolutions"]
        for level in range(len(multipliers))
    ]
    return diffusers.VQModel(
        down_block_types=[
            "AttnDownEncoderBlock2D" if attention else "DownEncoderBlock2D"
            for attention in with_attention
        ],
        up_block_types=[
            "AttnUpDecoderBlock2D" if attention else "UpDecoderBlock2D"
            for attention in reversed(with_attention)
        ],
        block_out_channels=[settings["base_channels"] * multiplier for multiplier in multipliers],
        layers_per_block=settings["num_residual_blocks"],
        latent_channels=settings["latent_channels"],
        sample_size=resolution,
        num_vq_embeddings=settings["codebook_size"],
        vq_embed_dim=settings["codebook_dim"],
        lookup_from_codebook=True,
    )


def _encode(model: Any, settings: dict[str, Any], images: torch.Tensor) -> Any:
    model.eval()

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return model.quantize(model.encode(images).latents)[2][2]

    return encode


def _decode(model: Any, settings: dict[str, Any], images: torch.Tensor) -> Any:
    indices = _encode(model, settings, images)()
    side = settings["resolution"] // 2 ** (len(settings["channel_multipliers"]) - 1)
    shape = (len(images), side, side, settings["codebook_dim"])

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return model.decode(indices, force_not_quantize=True, shape=shape).sample

    return decode


def _autoencoder_step(model: Any, settings: dict[str, Any], images: torch.Tensor) -> Any:
    model.train()
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
