"""Times stage 2: training steps and sampling, beside CompVis' transformer and GPT-2's `generate`.

All are GPTs with LayerNorm, GELU, learned positions and a head of their own. Sampling draws all
tokens of a batch from one start id, at temperature 1, with cached keys and values. With guidance
each image is two sequences for our transformer; programs that know no guidance draw twice as many
sequences instead: the same work, and only the images' tokens count.
"""

from benchmarks.command import Preset, run

MEASUREMENTS = ("gpt_step", "sample", "sample_compiled")
SAMPLING, TRAINING = ["sample", "sample_compiled"], ["gpt_step"]
SMALL = {  # 26 million weights
    "batch_size": 1,
    "num_tokens": 256,
    "num_layers": 8,
    "num_heads": 8,
    "embed_dim": 512,
    "codebook_size": 1024,
    "top_k": 100,
    "guidance_scale": 1.0,
}
LARGE = SMALL | {  # the size of LlamaGen's 343M model
    "num_layers": 24,
    "num_heads": 16,
    "embed_dim": 1024,
    "codebook_size": 16384,
}
CPU_PEERS = {
    "compvis": {"script": "compvis", "precision": (None, None)},  # dtype and tf32: as ours
    "generate": {"script": "transformers_gpt2", "precision": (None, None)},
}
GPU_PEERS = {
    "compvis_float32": {"script": "compvis", "precision": ("float32", False)},  # as it was
    "compvis_bf16": {"script": "compvis", "precision": ("bf16", True)},
    "generate_bf16": {"script": "transformers_gpt2", "precision": ("bf16", True)},
}
GPU = {
    "device": "cuda",
    "dtype": "bf16",
    "tf32": True,
    "steps": 1,
    "peak_tflops": 989.0,  # an H100 SXM's dense bf16
    "peak_bandwidth_gbs": 3350.0,  # and its memory; an H200's: 4800
}


def sampling(case: dict, **changes: int | float) -> dict:
    """A case for sampling."""
    return {**case, "measurements": SAMPLING, **changes}


PRESETS = {
    "cpu": Preset(
        cases={
            **{f"sample_{size}": sampling(SMALL, batch_size=size) for size in (1, 2, 16)},
            **{
                f"step_{size}": SMALL | {"measurements": TRAINING, "batch_size": size}
                for size in (2, 8)
            },
        },
        peers=CPU_PEERS,
        options={"warmup": 1, "steps": 1},
    ),
    "cpu_sequence_length": Preset(  # the longest takes minutes a call
        cases={f"tokens_{n}": sampling(SMALL, num_tokens=n) for n in (256, 1024, 4096)},
        peers=CPU_PEERS,
        options={"rounds": 3, "warmup": 0, "steps": 1},
    ),
    "gpu": Preset(
        cases={
            **{
                f"sample_{size}": sampling(LARGE, batch_size=size, guidance_scale=2.0)
                for size in (1, 2, 16, 64)
            },
            "step_64": LARGE | {"measurements": TRAINING, "batch_size": 64},
        },
        peers=GPU_PEERS,
        options=GPU | {"compile": True, "warmup": 2, "turn_seconds": 2.0},
    ),
    "gpu_sequence_length": Preset(
        cases={f"tokens_{n}": sampling(LARGE, num_tokens=n) for n in (256, 1024, 4096)},
        peers=GPU_PEERS,
        options=GPU | {"rounds": 3, "warmup": 1},
    ),
}

if __name__ == "__main__":
    run(PRESETS, MEASUREMENTS, __doc__)
