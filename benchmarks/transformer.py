"""Times training steps and sampling of stage 2, of CompVis' transformer and of GPT-2's `generate`.

All three are GPTs with LayerNorm, GELU, learned positions and an untied head. Sampling draws all
tokens of a batch from one start id, at temperature 1, with cached keys and values. With guidance,
our transformer computes two sequences for each image. The peers have no guidance, so they draw
twice as many sequences instead. The work is the same, and only the tokens of the images count.
"""

from benchmarks.command import QUICK, Preset, main

MEASUREMENTS = ("gpt_step", "sample", "sample_compiled")
TRAINING = {"measurements": ["gpt_step"]}
SAMPLING = {"measurements": ["sample", "sample_compiled"]}
NETWORK = {"codebook_size": 1024, "num_layers": 8, "num_heads": 8, "embed_dim": 512}
SMALL = NETWORK | {  # 26 million weights
    "batch_size": 1,
    "num_tokens": 256,
    "top_k": 100,
    "guidance_scale": 1.0,
}
LARGE = SMALL | {  # the size of LlamaGen's 343M model
    "num_layers": 24,
    "num_heads": 16,
    "embed_dim": 1024,
    "codebook_size": 16384,
}
TINY = SMALL | {
    "batch_size": 2,
    "num_tokens": 9,
    "num_layers": 2,
    "num_heads": 2,
    "embed_dim": 8,
    "codebook_size": 16,
    "top_k": 4,
}
GUIDED = LARGE | SAMPLING | {"guidance_scale": 2.0}
CPU_PEERS = {
    "compvis": ("compvis", "float32"),
    "generate": ("transformers_gpt2", "float32"),
}
PRESETS: dict[str, Preset] = {
    "cpu": {
        "cases": {f"sample_{b}": SMALL | SAMPLING | {"batch_size": b} for b in (1, 2, 16)}
        | {f"step_{b}": SMALL | TRAINING | {"batch_size": b} for b in (2, 8)},
        "peers": CPU_PEERS,
        "warmup": 1,
    },
    "cpu_sequence_length": {  # two blocks, and two rounds of the longest, to end within 12 minutes
        "cases": {
            f"tokens_{n}": SMALL | SAMPLING | {"num_layers": 2, "num_tokens": n, "rounds": rounds}
            for n, rounds in ((256, 5), (1024, 5), (4096, 2))
        },
        "peers": CPU_PEERS,
        "warmup": 0,
    },
    "gpu": {
        "cases": {f"sample_{b}": GUIDED | {"batch_size": b} for b in (1, 2, 16, 64)}
        | {"step_64": LARGE | TRAINING | {"batch_size": 64}},
        "peers": {
            "compvis_float32": ("compvis", "float32"),  # unchanged
            "compvis_bf16": ("compvis", "bf16"),
            "generate_bf16": ("transformers_gpt2", "bf16"),
        },
        "device": "cuda",
        "dtype": "bf16",
        "compile": True,
    },
    "tiny": {"cases": {"tiny": TINY}, "peers": CPU_PEERS, **QUICK},
}

if __name__ == "__main__":
    main(PRESETS, MEASUREMENTS, __doc__)
