"""`GPT2LMHeadModel` of transformers and its `generate`, with image tokens instead of words.

With an untied head and the exact GELU it has the architecture of the other programs. A training
step is its forward pass, cross-entropy, backward pass and fused AdamW, the default of its Trainer.
"""

from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from serve import Settings, num_parameters, training_step


def build(settings: Settings, measurement: str, tokens: torch.Tensor) -> Any:
    """Returns the call to time and facts about it; see `serve.py`."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=settings["codebook_size"],
        n_positions=settings["num_tokens"],
        n_layer=settings["num_layers"],
        n_head=settings["num_heads"],
        n_embd=settings["embed_dim"],
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,  # an image ends after all its tokens
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    model = transformers.GPT2LMHeadModel(config).to(tokens.device)
    gpt = model.transformer
    facts = {
        "versions": {
            "transformers": version("transformers"),
            "attention": model.config._attn_implementation,
        },
        "parameters": num_parameters(
            blocks=[gpt.h], embeddings=[gpt.wte, gpt.wpe], head=[gpt.ln_f, model.lm_head]
        ),
    }
    if measurement == "gpt_step":
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        inputs = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)  # (b n)

        def loss() -> torch.Tensor:
            logits = model(inputs, use_cache=False).logits
            return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

        return training_step(settings, loss, optimizer), facts
    if settings["dtype"] == "bf16":
        model.to(torch.bfloat16)
    model.eval()
    start = tokens.new_zeros(len(tokens) * (1 if settings["guidance_scale"] == 1 else 2), 1)
    options = {
        "attention_mask": torch.ones_like(start),
        "do_sample": True,
        "temperature": 1.0,
        "top_k": settings["top_k"],
        "use_cache": True,
        "min_new_tokens": settings["num_tokens"],
        "max_new_tokens": settings["num_tokens"],
    }
    return lambda: model.generate(start, **options)[:, 1:], facts
