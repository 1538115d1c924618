"""CompVis' program of 2021, from the package `taming-transformers-rom1504`.

Its LightningModules, losses, networks and `sample_with_past` do all the work, unchanged. This file
adds what PyTorch Lightning 1.0 did around `training_step`, and the names that today's libraries
have removed. It replaces downloads (VGG and LPIPS stay random) and logging. The transformer trains
on ready tokens, and each sequence starts with its start id, 0.
"""

import importlib
import sys
import types
from importlib.metadata import version
from typing import Any

import torch
import torchvision
from serve import Call, Settings, autocast, inference, num_parameters, training_step
from torch import nn

DISCRIMINATOR_START = 1


def build(settings: Settings, measurement: str, inputs: torch.Tensor) -> Any:
    """Returns the call to time and facts about it; see `serve.py`."""
    if measurement in ("gpt_step", "sample", "sample_compiled"):
        call, parameters = transformer_call(settings, measurement, inputs)
    elif measurement == "autoencoder_step":
        return None
    else:
        call, parameters = vqgan_call(settings, measurement, inputs)
    packages = ("taming-transformers-rom1504", "pytorch-lightning")
    versions = {name: version(name) for name in packages}
    return call, {"versions": versions, "parameters": parameters}


def compvis_module(name: str) -> Any:
    """Imports a module of its package `taming`, with stubs for what newer libraries removed."""
    import pytorch_lightning

    distributed = types.ModuleType("pytorch_lightning.utilities.distributed")
    distributed.rank_zero_only = pytorch_lightning.utilities.rank_zero_only
    transformers = types.ModuleType("transformers")  # it uses nothing else of transformers
    transformers.top_k_top_p_filtering = top_k_filtering
    sys.modules |= {distributed.__name__: distributed, transformers.__name__: transformers}
    return importlib.import_module(f"taming.{name}")


def top_k_filtering(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Sets logits `(b v)` below the k-th to -∞, like transformers 4.3 with a `top_p` of 1."""
    kth = torch.topk(logits, min(top_k, logits.shape[-1])).values[..., -1, None]
    logits[logits < kth] = -torch.inf
    return logits


class Unlogged:
    """A LightningModule without a trainer: it computes what it logs and drops it."""

    global_step = 0

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    log_dict = log


def vqgan_call(
    settings: Settings, measurement: str, images: torch.Tensor
) -> tuple[Call, dict[str, int]]:
    """Returns the call of stage 1 to time, and numbers of parameters."""
    lpips = compvis_module("modules.losses.lpips")
    lpips.models = types.SimpleNamespace(vgg16=lambda pretrained: torchvision.models.vgg16())
    lpips.LPIPS.load_from_pretrained = lambda self: None
    loss: dict[str, Any] = {"target": "taming.modules.losses.DummyLoss"}
    if measurement.startswith("step"):
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
    Model = type("Model", (Unlogged, compvis_module("models.vqgan").VQModel), {})  # noqa: N806
    codes, width = settings["codebook_size"], settings["codebook_dim"]
    model: Any = Model(network, loss, codes, width).to(images.device)
    parts = {"autoencoder": [p for n, p in model.named_parameters() if n[:5] != "loss."]}
    if measurement.startswith("step"):
        parts["discriminator"] = [model.loss.discriminator]
        parts["perceptual"] = [model.loss.perceptual_loss]
        model.global_step = DISCRIMINATOR_START - (measurement == "step_before_start")
        return vqgan_step(model.train(), settings, images), num_parameters(**parts)
    model.eval()
    encode = inference(settings, lambda: model.encode(images)[2][2])
    indices = encode()
    side = settings["resolution"] // 2 ** (len(settings["channel_multipliers"]) - 1)
    shape = (len(images), side, side, width)
    decode = inference(
        settings, lambda: model.decode(model.quantize.get_codebook_entry(indices, shape))
    )
    return encode if measurement == "encode" else decode, num_parameters(**parts)


def vqgan_step(model: Any, settings: Settings, images: torch.Tensor) -> Call:
    """Builds a step: `training_step`, backward and Adam for the weights of each optimizer.

    Its LPIPS is in training mode with active dropout, as in the original training.
    """
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


class Tokens(nn.Module):
    """A tokenizer whose images are tokens."""

    def encode(self, tokens: torch.Tensor) -> Any:
        """Returns tokens in the format of its VQGAN."""
        return tokens, None, (None, None, tokens)


def transformer_call(
    settings: Settings, measurement: str, tokens: torch.Tensor
) -> tuple[Call, dict[str, int]]:
    """Returns the call of stage 2 to time, and numbers of parameters."""
    network = {
        "vocab_size": settings["codebook_size"],
        "block_size": settings["num_tokens"],
        "n_layer": settings["num_layers"],
        "n_head": settings["num_heads"],
        "n_embd": settings["embed_dim"],
    }
    transformer = compvis_module("models.cond_transformer").Net2NetTransformer
    without_checkpoint = {
        "init_first_stage_from_ckpt": lambda self, config: setattr(
            self, "first_stage_model", Tokens()
        )
    }
    Model = type("Model", (Unlogged, transformer), without_checkpoint)  # noqa: N806
    config = {"target": "taming.modules.transformer.mingpt.GPT", "params": network}
    model: Any = Model(config, None, "__is_unconditional__", sos_token=0).to(tokens.device)
    gpt = model.transformer
    parameters = num_parameters(
        blocks=[gpt.blocks], embeddings=[gpt.tok_emb, gpt.pos_emb], head=[gpt.ln_f, gpt.head]
    )
    if measurement == "gpt_step":
        model.train().learning_rate = 4.5e-6 * len(tokens)
        batch = {"image": tokens[:, None, :]}  # (b 1 n), as a grid
        optimizer = model.configure_optimizers()
        return training_step(settings, lambda: model.training_step(batch, 0), optimizer), parameters
    sample_with_past = compvis_module("modules.transformer.mingpt").sample_with_past
    if settings["dtype"] == "bf16":
        gpt.to(torch.bfloat16)
    gpt.eval()
    start = tokens.new_zeros(len(tokens) * (1 if settings["guidance_scale"] == 1 else 2), 1)
    options = {"temperature": 1.0, "sample_logits": True, "top_k": settings["top_k"], "top_p": 1.0}
    return lambda: sample_with_past(start, gpt, settings["num_tokens"], **options), parameters
