"""`VQModel` of diffusers, which has the same architecture but no training code.

Its training step therefore covers only the autoencoder: forward pass, L1 and quantizer loss,
backward pass, Adam.
"""

from importlib.metadata import version
from typing import Any

import torch
from serve import Settings, inference, num_parameters, training_step


def build(settings: Settings, measurement: str, images: torch.Tensor) -> Any:
    """Returns the call to time and facts about it; see `serve.py`."""
    import diffusers

    multipliers, resolution = settings["channel_multipliers"], settings["resolution"]
    kinds = [
        "Attn" if resolution >> level in settings["attention_resolutions"] else ""
        for level in range(len(multipliers))
    ]
    model = diffusers.VQModel(
        down_block_types=[f"{kind}DownEncoderBlock2D" for kind in kinds],
        up_block_types=[f"{kind}UpDecoderBlock2D" for kind in reversed(kinds)],
        block_out_channels=[settings["base_channels"] * multiplier for multiplier in multipliers],
        layers_per_block=settings["num_residual_blocks"],
        latent_channels=settings["latent_channels"],
        sample_size=resolution,
        num_vq_embeddings=settings["codebook_size"],
        vq_embed_dim=settings["codebook_dim"],
        lookup_from_codebook=True,
    ).to(images.device)
    facts = {
        "versions": {"diffusers": version("diffusers")},
        "parameters": num_parameters(autoencoder=[model]),
    }
    if measurement == "autoencoder_step":
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.5, 0.9))

        def loss() -> torch.Tensor:
            output = model(images)
            return (output.sample - images).abs().mean() + output.commit_loss.mean()

        return training_step(settings, loss, optimizer), facts
    model.eval()
    encode = inference(settings, lambda: model.quantize(model.encode(images).latents)[2][2])
    if measurement == "encode":
        return encode, facts
    if measurement != "decode":
        return None
    indices = encode()
    side = resolution // 2 ** (len(multipliers) - 1)
    options = {
        "force_not_quantize": True,
        "shape": (len(images), side, side, model.config.vq_embed_dim),
    }
    return inference(settings, lambda: model.decode(indices, **options).sample), facts
