"""Times stage 1: training steps, encoding and decoding, beside CompVis' VQGAN and diffusers'."""

from benchmarks.command import Preset, main

MEASUREMENTS = ("step", "step_before_start", "autoencoder_step", "encode", "decode")
F16 = {  # the paper's model of 72 million parameters
    "batch_size": 16,
    "resolution": 256,
    "base_channels": 128,
    "channel_multipliers": [1, 1, 2, 2, 4],
    "num_residual_blocks": 2,
    "attention_resolutions": [16],
    "latent_channels": 256,
    "codebook_size": 1024,
    "codebook_dim": 256,
    "discriminator_channels": 64,
    "discriminator_layers": 3,
}
SMALL = F16 | {
    "batch_size": 8,
    "resolution": 64,
    "base_channels": 32,
    "channel_multipliers": [1, 2, 4],
    "attention_resolutions": [],
    "latent_channels": 128,
    "codebook_dim": 128,
}
CPU = {  # float32: a small model on small images, and the paper's on one
    "cases": {
        "ch32": SMALL,
        "f16": F16 | {"batch_size": 1, "resolution": 128, "attention_resolutions": [8]},
    },
    "peers": {"compvis": ("compvis", None), "diffusers": ("diffusers_vqmodel", None)},
}
GPU = {  # ours in bf16
    "cases": {"f16": F16},
    "peers": {
        "compvis_float32": ("compvis", "float32"),  # as it was
        "compvis_bf16": ("compvis", "bf16"),
        "diffusers_bf16": ("diffusers_vqmodel", "bf16"),
    },
    "device": "cuda",
    "dtype": "bf16",
    "compile": True,
    "channels_last": True,
}
PRESETS: dict[str, Preset] = {"cpu": CPU, "gpu": GPU}

if __name__ == "__main__":
    main(PRESETS, MEASUREMENTS, __doc__)
