"""CompVis' program of 2021, from the package `taming-transformers-rom1504`.

Its LightningModules, losses, networks and `sample_with_past` do all the work, unchanged. Here is
only what PyTorch Lightning 1.0 did around `training_step`, what its imports miss among today's
libraries, and stand-ins for downloads (VGG and LPIPS stay random) and for logging. The transformer
trains on tokens that are there already; each sequence begins with its start id, 0.
"""

import importlib
import sys
import types
from importlib.metadata import version
from typing import Any

import torch
import torchvision
from serve import autocast  # the file that runs this one
from torch import nn

DISCRIMINATOR_START = 1


def build(settings: dict[str, Any], measurement: str, inputs: torch.Tensor) -> Any:
    """What is timed, and facts about it; see `serve.py`."""
    training = measurement in ("step", "step_before_start")
    if training or measurement in ("encode", "decode"):
        model = vqgan(settings, training).to(inputs.device)
        parts = {"autoencoder": [p for n, p in model.named_parameters() if n[:5] != "loss."]}
        if training:
            parts["discriminator"] = list(model.loss.discriminator.parameters())
            parts["perceptual"] = list(model.loss.perceptual_loss.parameters())
            call = vqgan_step(model, settings, inputs, measurement)
        else:
            call = inference(model.eval(), settings, inputs, measurement)
    elif measurement in ("gpt_step", "sample", "sample_compiled"):
        model = transformer(settings).to(inputs.device)
        gpt = model.transformer
        parts = {
            "blocks": list(gpt.blocks.parameters()),
            "embeddings": [*gpt.tok_emb.parameters(), gpt.pos_emb],
            "head": [*gpt.ln_f.parameters(), *gpt.head.parameters()],
        }
        step = measurement == "gpt_step"
        call = gpt_step(model, settings, inputs) if step else sampling(gpt, settings, inputs)
    else:
        return None
    packages = ("taming-transformers-rom1504", "pytorch-lightning")
    return call, {
        "versions": {name: version(name) for name in packages},
        "parameters": {name: sum(p.numel() for p in part) for name, part in parts.items()},
    }


def module(name: str) -> Any:
    """Imports a module of its package `taming`, with what newer libraries have moved or removed."""
    import pytorch_lightning

    moved = types.ModuleType("pytorch_lightning.utilities.distributed")
    moved.rank_zero_only = pytorch_lightning.utilities.rank_zero_only
    removed = types.ModuleType("transformers")  # nothing else of transformers is used
    removed.top_k_top_p_filtering = top_k_filtering
    sys.modules |= {moved.__name__: moved, removed.__name__: removed}
    return importlib.import_module(f"taming.{name}")


def top_k_filtering(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """What transformers 4.3 did with a `top_p` of 1: -∞ below the k-th of logits `(b v)`."""
    assert top_p == 1
    kth = torch.topk(logits, min(top_k, logits.shape[-1])).values[..., -1, None]
    logits[logits < kth] = -torch.inf
    return logits


def vqgan(settings: dict[str, Any], training: bool) -> Any:
    """Its VQGAN, with losses if it is to be trained."""
    lpips = module("modules.losses.lpips")
    lpips.models = types.SimpleNamespace(
        vgg16=lambda pretrained: torchvision.models.vgg16(weights=None)
    )
    lpips.LPIPS.load_from_pretrained = lambda self: None

    class Model(module("models.vqgan").VQModel):
        global_step = 0

        def log(self, *args: Any, **kwargs: Any) -> None: ...

        def log_dict(self, *args: Any, **kwargs: Any) -> None: ...

    loss: dict[str, Any] = {"target": "taming.modules.losses.DummyLoss"}
    if training:
        loss = {
            "target": "taming.modules.losses.vqperceptual.VQLPIPSWithDiscriminator",
            "params": {
                "disc_start": DISCRIMINATOR_START,
                "disc_weight": 0.8,
                "disc_num_layers": settings["discriminator_layers"],
                "disc_ndf": settings["discriminator_channels"],
            },
        }
    network = {
        "double_z": False,
        "z_channels": settings["latent_channels"],
        "resolution": settings["resolution"],
        "in_channels": 3,
        "out_ch": 3,
        "ch": settings["base_channels"],
        "ch_mult": settings["channel_multipliers"],
        "num_res_blocks": settings["num_residual_blocks"],
        "attn_resolutions": settings["attention_resolutions"],
        "dropout": 0.0,
    }
    return Model(network, loss, settings["codebook_size"], settings["codebook_dim"])


def vqgan_step(model: Any, settings: dict[str, Any], images: torch.Tensor, name: str) -> Any:
    """Once for each optimizer: only its weights have gradients, `training_step`, backward, Adam."""
    model.train()  # its LPIPS too, whose dropout is therefore on, as it was in its training
    model.global_step = DISCRIMINATOR_START - (name == "step_before_start")
    model.learning_rate = 4.5e-6 * len(images)
    optimizers, _ = model.configure_optimizers()
    weights = [[p for g in optimizer.param_groups for p in g["params"]] for optimizer in optimizers]
    batch = {"image": images.permute(0, 2, 3, 1)}  # its data sets give channels last

    def step() -> torch.Tensor:
        for index, optimizer in enumerate(optimizers):
            for other, group in enumerate(weights):
                for weight in group:
                    weight.requires_grad = other == index
            with autocast(settings):
                loss = model.training_step(batch, 0, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    return step


def inference(model: Any, settings: dict[str, Any], images: torch.Tensor, name: str) -> Any:
    """Its `encode`, or its `decode` of what that gives."""

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return model.encode(images)[2][2]

    indices = encode()
    side = settings["resolution"] // 2 ** (len(settings["channel_multipliers"]) - 1)
    shape = (len(images), side, side, settings["codebook_dim"])

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return model.decode(model.quantize.get_codebook_entry(indices, shape))

    return encode if name == "encode" else decode


class Tokens(nn.Module):
    """A tokenizer whose images are the tokens already."""

    def encode(self, tokens: torch.Tensor) -> Any:
        """Returns them in the form of its own VQGAN's."""
        return tokens, None, (None, None, tokens)


def transformer(settings: dict[str, Any]) -> Any:
    """Its transformer, unconditional."""

    class Model(module("models.cond_transformer").Net2NetTransformer):
        def init_first_stage_from_ckpt(self, config: Any) -> None:
            self.first_stage_model = Tokens()

        def log(self, *args: Any, **kwargs: Any) -> None: ...

    network = {
        "vocab_size": settings["codebook_size"],
        "block_size": settings["num_tokens"],
        "n_layer": settings["num_layers"],
        "n_head": settings["num_heads"],
        "n_embd": settings["embed_dim"],
    }
    gpt = {"target": "taming.modules.transformer.mingpt.GPT", "params": network}
    return Model(gpt, None, "__is_unconditional__", sos_token=0)


def gpt_step(model: Any, settings: dict[str, Any], tokens: torch.Tensor) -> Any:
    """Its training step."""
    model.train()
    model.learning_rate = 4.5e-6 * len(tokens)
    optimizer = model.configure_optimizers()
    batch = {"image": tokens[:, None, :]}  # (b 1 n), as a grid

    def step() -> torch.Tensor:
        with autocast(settings):
            loss = model.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def sampling(gpt: Any, settings: dict[str, Any], tokens: torch.Tensor) -> Any:
    """Its `sample_with_past`, called as its scripts do."""
    sample_with_past = module("modules.transformer.mingpt").sample_with_past
    if settings["dtype"] == "bf16":
        gpt.to(torch.bfloat16)
    gpt.eval()
    sequences = len(tokens) * (1 if settings["guidance_scale"] == 1 else 2)
    start = tokens.new_zeros(sequences, 1)
    options = {"temperature": 1.0, "sample_logits": True, "top_k": settings["top_k"], "top_p": 1.0}
    return lambda: sample_with_past(start, gpt, steps=settings["num_tokens"], **options)
