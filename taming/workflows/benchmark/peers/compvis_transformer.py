"""CompVis' transformer, from the package `taming-transformers-rom1504`.

Training is its LightningModule's `training_step`, loss and optimizer, unchanged, on tokens that are
there already: its tokenizer is replaced by one that hands them over. Sampling is its
`sample_with_past`, called as its scripts do. Each sequence begins with its start id, 0, which is
also a code.
"""

from typing import Any

import torch
from compvis_package import (  # type: ignore[import-not-found]  # beside this file
    compvis_module,
    compvis_versions,
)
from serve import autocast  # type: ignore[import-not-found]  # the file that runs this one
from torch import nn


def build(settings: dict[str, Any], measurement: str, tokens: torch.Tensor) -> Any:
    """What is timed, and facts about it; see `serve.py`."""
    if measurement not in ("gpt_step", "sample", "sample_compiled"):
        return None
    model = _model(settings).to(tokens.device)
    gpt = model.transformer
    parts = {
        "blocks": list(gpt.blocks.parameters()),
        "embeddings": [*gpt.tok_emb.parameters(), gpt.pos_emb],
        "head": [*gpt.ln_f.parameters(), *gpt.head.parameters()],
    }
    facts = {
        "versions": compvis_versions(),
        "parameters": {name: sum(p.numel() for p in part) for name, part in parts.items()},
    }
    if measurement == "gpt_step":
        return _training_step(model, settings, tokens), facts
    return _sampling(gpt, settings, tokens), facts


class Tokens(nn.Module):
    """A tokenizer whose images are the tokens already."""

    def encode(self, tokens: torch.Tensor) -> Any:
        """In the form of its own VQGAN's."""
        return tokens, None, (None, None, tokens)


def _model(settings: dict[str, Any]) -> Any:
    transformer: Any = compvis_module("models.cond_transformer")

    class Model(transformer.Net2NetTransformer):  # type: ignore[misc, name-defined, unused-ignore]
        """Without a tokenizer's checkpoint, and what is logged goes nowhere."""

        def init_first_stage_from_ckpt(self, config: Any) -> None:
            self.first_stage_model = Tokens()

        def log(self, *args: Any, **kwargs: Any) -> None:
            pass

    return Model(
        {
            "target": "taming.modules.transformer.mingpt.GPT",
            "params": {
                "vocab_size": settings["codebook_size"],
                "block_size": settings["num_tokens"],
                "n_layer": settings["num_layers"],
                "n_head": settings["num_heads"],
                "n_embd": settings["embed_dim"],
            },
        },
        None,
        "__is_unconditional__",
        sos_token=0,
    )


def _training_step(model: Any, settings: dict[str, Any], tokens: torch.Tensor) -> Any:
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


def _sampling(gpt: Any, settings: dict[str, Any], tokens: torch.Tensor) -> Any:
    mingpt: Any = compvis_module("modules.transformer.mingpt")
    if settings["dtype"] == "bf16":
        gpt.to(torch.bfloat16)
    gpt.eval()
    per_image = 1 if settings["guidance_scale"] == 1 else 2
    start = tokens.new_zeros(len(tokens) * per_image, 1)

    def sample() -> torch.Tensor:
        return mingpt.sample_with_past(
            start,
            gpt,
            steps=settings["num_tokens"],
            temperature=1.0,
            sample_logits=True,
            top_k=settings["top_k"],
            top_p=1.0,
        )

    return sample
