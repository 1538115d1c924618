"""This program's stage 2 in the benchmark."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from taming.generation import ImageGenerator
from taming.sequence import to_indices
from taming.transformer import GPT
from taming.workflows.benchmark.cases import TransformerCase
from taming.workflows.benchmark.ours import OurBuild, training_step
from taming.workflows.benchmark.peers.serve import Built, Settings

__all__ = ["count_transformer_parameters", "transformer_build"]


def transformer_build(make_training: Callable[[TransformerCase], Any]) -> OurBuild:
    """Times `TransformerTraining.training_step`, and `ImageGenerator.sample_tokens`.

    Args:
        make_training: makes the `TransformerTraining` of a case.
    """

    def build(
        case: TransformerCase, settings: Settings, measurement: str, tokens: torch.Tensor
    ) -> Built:
        module = make_training(case).to(tokens.device)
        facts: dict[str, Any] = {"parameters": count_transformer_parameters(module.transformer)}
        if measurement == "gpt_step":
            batch = {
                "indices": to_indices(tokens, case.grid_size),
                "labels": tokens.new_zeros(len(tokens)),
            }
            head = module.transformer.head.weight
            return training_step(module, settings, batch, head), facts
        generator = ImageGenerator(None, module.transformer, module.conditioning, case.grid_size)
        if settings["dtype"] == "bf16":
            generator.to(torch.bfloat16)
        facts["weight_bytes"] = _bytes_read(generator.transformer)
        facts["cache_bytes"] = _cache_bytes_read(generator.transformer, case)
        return _sampling(generator.eval(), case, compiled=measurement == "sample_compiled"), facts

    return build


def count_transformer_parameters(gpt: GPT) -> dict[str, int]:
    """Numbers of weights by part; the prefix has ids of its own, which the peers have not."""
    parts: dict[str, list[nn.Module]] = {
        "blocks": [gpt.blocks],
        "embeddings": [gpt.token_embedding, gpt.positions],
        "head": [gpt.norm, gpt.head],
        "prefix": [gpt.prefix_embedding],
    }
    return {
        name: sum(p.numel() for module in modules for p in module.parameters())
        for name, modules in parts.items()
    }


def _bytes_read(gpt: GPT) -> int:
    """Of all weights but the embedding tables, of which a step reads a row or two."""
    return sum(
        p.numel() * p.element_size()
        for module in (gpt.blocks, gpt.norm, gpt.head)
        for p in module.parameters()
    )


def _cache_bytes_read(gpt: GPT, case: TransformerCase) -> int:
    """Of keys and values, by all steps of a call: of a sequence 1, then 2, … then n of each."""
    sequences = case.batch_size * (2 if case.with_guidance else 1)
    read = case.num_tokens * (case.num_tokens + 1) // 2
    width = 2 * case.embed_dim * gpt.head.weight.element_size()  # of a token's key and value
    return sequences * case.num_layers * read * width


def _sampling(
    generator: ImageGenerator, case: TransformerCase, *, compiled: bool
) -> Callable[[], torch.Tensor]:
    condition = None
    options: dict[str, Any] = {}
    if case.with_guidance:
        condition = torch.zeros(case.batch_size, dtype=torch.int64)
        options["guidance_scale"] = case.guidance_scale
    if compiled:
        options["compile"] = True

    def sample() -> torch.Tensor:
        return generator.sample_tokens(
            case.batch_size,
            condition,
            top_k=case.top_k,
            seed=0,
            batch_size=case.batch_size,
            **options,
        )

    return _compiled_afresh(sample) if compiled else sample


def _compiled_afresh(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The first call compiles with nothing kept from earlier ones: its time is a newcomer's."""
    from torch._inductor.utils import fresh_cache  # slow to import, and needed only here

    torch.compiler.reset()
    first = True

    def timed() -> torch.Tensor:
        nonlocal first
        with fresh_cache() if first else nullcontext():
            first = False
            return call()

    return timed
