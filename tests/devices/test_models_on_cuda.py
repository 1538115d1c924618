"""Models on a pretended GPU: nothing is left on the CPU, and nothing waits; see fake_cuda.py."""

from typing import Any

import pytest
import torch
from fake_cuda import everywhere_cuda, fake_cuda, to_cuda

from taming.attention import KeyValueCache
from taming.conditioning import CellClasses
from taming.discriminators import DifferentiableAugmentation, PatchDiscriminator
from taming.losses import ADVERSARIAL_LOSSES, LeCAM, adaptive_weight
from taming.quantizers import build_quantizer
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available")  # of autocast

GRID = (2, 4)
MODERN = {"norm": "rms_norm", "feed_forward": "swiglu", "bias": False, "qk_norm": True}
IMAGE = {"prefix_length": 8, "prefix_grid_size": GRID, "bidirectional_prefix": True}
CONTEXT = {"num_context_ids": 5, "context_grid_size": (2, 3)}
POSITIONS = ("sinusoidal", "learned", "sinusoidal_2d", "rotary_2d")
TRANSFORMERS: dict[str, dict[str, Any]] = {
    **{kind: {"positions": kind} for kind in POSITIONS},
    **{f"{kind} modern": {"positions": kind, **MODERN} for kind in ("sinusoidal", "rotary_2d")},
    **{f"{kind} image": {"positions": kind, **IMAGE} for kind in POSITIONS},
    **{f"{kind} context": {"positions": kind, **CONTEXT} for kind in POSITIONS},
    "zero rotation": {"positions": "rotary_2d", "zero_prefix_rotation": True},
    "dropout, tied": {
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "embedding_dropout": 0.1,
        "tie_head": True,
    },
}
QUANTIZERS: dict[str, dict[str, Any]] = {
    "vector": {"kind": "vector"},
    "started at data": {"kind": "vector", "cosine": True, "revive_after": 3},
    "averaged": {"kind": "vector", "ema_decay": 0.9, "init": "data", "revive_after": 3},
    "entropy": {"kind": "vector", "entropy_weight": 0.1, "gradient": "rotation"},
    "gumbel": {"kind": "gumbel"},
    "gumbel, soft": {"kind": "gumbel", "hard": False, "temperature_schedule": "linear"},
    "finite scalar": {"kind": "finite_scalar", "levels": [4, 3, 3]},
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer(name: str) -> None:
    options = {"grid_size": GRID, "prefix_length": 1, **TRANSFORMERS[name]}
    num_prefix = options["prefix_length"]
    with fake_cuda(bf16=True) as watch:
        model = to_cuda(
            GPT(
                GPTConfig(
                    codebook_size=11,
                    num_prefix_ids=3,
                    context_length=num_prefix + 7,
                    num_layers=1,
                    num_heads=2,
                    embed_dim=16,
                    **options,
                )
            )
        )
        prefix = torch.zeros(3, num_prefix, dtype=torch.int64, device="cuda")
        tokens = torch.zeros(3, 8, dtype=torch.int64, device="cuda")
        context = None
        if "num_context_ids" in options:
            context = torch.zeros(3, 6, dtype=torch.int64, device="cuda")
        watch.forget()

        logits = model.token_logits(prefix, tokens, context)
        assert logits.shape == (3, 8, 11) and everywhere_cuda(logits)
        model.eval()
        with torch.no_grad():
            cache = KeyValueCache(1, num_prefix + 8)
            model(prefix, tokens[:, :3], context, cache=cache)
            eager = model(None, tokens[:, 3:4], cache=cache)
            cache.span = num_prefix + 8
            position = torch.full((1,), num_prefix + 4, device="cuda")
            step = model(None, tokens[:, 4:5], positions=position, cache=cache)
        assert everywhere_cuda([eager, step]) and step.shape == (3, 1, 11)
        keys, values = cache.layers[0].keys, cache.layers[0].values
        assert logits.dtype == step.dtype == keys.dtype == values.dtype == torch.bfloat16
        assert not watch.waits and not watch.scalars


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer(name: str) -> None:
    config = dict(QUANTIZERS[name])
    if config["kind"] != "finite_scalar":
        config |= {"codebook_size": 8, "codebook_dim": 3}
    with fake_cuda(bf16=True) as watch:
        quantizer = to_cuda(build_quantizer(config))
        latents = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16, device="cuda")
        quantizer(latents)  # the first batch may wait, to start the codes
        quantizer.set_step(30)  # in which unused codes are looked for
        watch.forget()
        for mode in (True, False):
            output = quantizer.train(mode)(latents)
            assert everywhere_cuda([output.loss, list(vars(output).values())])
            assert output.quantized.dtype == torch.float32
        assert everywhere_cuda(quantizer.lookup(output.indices))
        assert not watch.waits and not watch.uploads and not watch.scalars


def test_a_tokenizer() -> None:
    with fake_cuda(bf16=True) as watch:
        model = to_cuda(
            VQGAN(
                quantizer={"kind": "vector", "codebook_size": 8, "codebook_dim": 4},
                resolution=16,
                base_channels=4,
                channel_multipliers=[1, 2],
                num_residual_blocks=1,
                attention_resolutions=[8],
                latent_channels=4,
            )
        )
        images = torch.zeros(2, 3, 16, 16, device="cuda")
        watch.forget()
        assert everywhere_cuda(model(images).reconstructions)
        indices = model.encode(images)
        assert indices.shape == (2, 8, 8) and everywhere_cuda([indices, model.decode(indices)])
        assert not watch.waits and not watch.uploads and not watch.scalars


@pytest.mark.parametrize("norm", ["batch", "group", "actnorm"])
def test_a_discriminator(norm: str) -> None:
    with fake_cuda(bf16=True) as watch:
        augment = DifferentiableAugmentation(["color", "translation", "cutout"])
        model = to_cuda(PatchDiscriminator(base_channels=8, num_layers=2, norm=norm, blur=True))
        lecam = to_cuda(LeCAM())
        images = torch.zeros(2, 3, 32, 32, device="cuda")
        watch.forget()
        scores = model(augment(images)).float()
        losses = [
            loss
            for kind in ADVERSARIAL_LOSSES.values()
            for loss in (kind.discriminator(scores, scores), kind.generator(scores))
        ]
        losses += [lecam(scores, scores), adaptive_weight(scores, scores)]
        assert everywhere_cuda([scores, losses])
        assert not watch.waits and not watch.uploads and not watch.scalars


def test_cells_of_label_maps() -> None:
    with fake_cuda() as watch:
        cells = CellClasses(4, 2, 8)
        watch.forget()
        indices = cells.encode(torch.zeros(2, 4, 8, 8, device="cuda"))
        assert indices.shape == (2, 4, 4) and everywhere_cuda([indices, cells.decode(indices)])
        assert not watch.waits


def test_what_is_forgotten_on_the_cpu_is_found() -> None:
    with fake_cuda() as watch:
        there, here = torch.zeros(2, 3, device="cuda"), torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(AssertionError, match="elsewhere"):
            here[torch.zeros(1, dtype=torch.int64, device="cuda")]
        assert (there + torch.tensor(1.0)).device.type == "cuda" and len(watch.scalars) == 1
        here.to("cuda").copy_(here)
        assert len(watch.uploads) == 2 and not watch.waits
        assert not (there > 0).any() and there.cpu().device.type == "cpu"
        assert len(watch.waits) == 2
