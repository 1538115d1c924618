"""Times training steps, encoding and decoding of stage 1, of CompVis' VQGAN and of diffusers'."""

from benchmarks.command import QUICK, Preset, main

MEASUREMENTS = ("step", "step_before_start", "autoencoder_step", "encode", "decode")
NETWORK = {  # the paper's model of 72 million parameters
    "resolution": 256,
    "base_channels": 128,
    "channel_multipliers": [1, 1, 2, 2, 4],
    "num_residual_blocks": 2,
    "attention_resolutions": [16],
    "latent_channels": 256,
}
F16 = NETWORK | {
    "batch_size": 16,
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
TINY = SMALL | {
    "batch_size": 2,
    "resolution": 16,
    "num_residual_blocks": 1,
    "latent_channels": 32,
    "codebook_size": 8,
    "codebook_dim": 4,
    "discriminator_channels": 4,
    "discriminator_layers": 1,
}
CPU_PEERS = {
    "compvis": ("compvis", "float32"),
    "diffusers": ("diffusers_vqmodel", "float32"),
}
PRESETS: dict[str, Preset] = {
    "cpu": {  # float32: a small model on small images, and the paper's model on one image
        "cases": {
            "ch32": SMALL,
            "f16": F16 | {"batch_size": 1, "resolution": 128, "attention_resolutions": [8]},
        },
        "peers": CPU_PEERS,
    },
    "gpu": {  # ours in bf16
        "cases": {"f16": F16},
        "peers": {
            "compvis_float32": ("compvis", "float32"),  # unchanged
            "compvis_bf16": ("compvis", "bf16"),
            "diffusers_bf16": ("diffusers_vqmodel", "bf16"),
        },
        "device": "cuda",
        "dtype": "bf16",
        "compile": True,
        "channels_last": True,
    },
    "tiny": {"cases": {"tiny": TINY}, "peers": CPU_PEERS, **QUICK},
}

if __name__ == "__main__":
    main(PRESETS, MEASUREMENTS, __doc__)
