"""`benchmark`: the speed of this program beside its peers."""

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from taming.cli.app import build, command, device, resolved
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.errors import UserError
from taming.workflows.benchmark import (
    CASES,
    AutoencoderCase,
    BenchmarkCase,
    Comparison,
    OurSide,
    TransformerCase,
    autoencoder_build,
    comparison_table,
    run_benchmark,
    transformer_build,
)

__all__ = ["main"]


@command("benchmark")
def main(config: DictConfig) -> None:
    """Times training steps, encoding, decoding, sampling; prints a table, writes JSON lines."""
    plain = resolved(config)
    settings = build(
        config.settings,
        device=str(device(plain["device"])),
        threads=torch.get_num_threads() if plain["threads"] is None else plain["threads"],
    )
    cases = [_case(name, case) for name, case in plain["cases"].items()]
    peers = {name: _typed("PeerConfig", peer) for name, peer in plain["peers"].items()}
    if not cases:
        raise UserError("there is nothing to time: `cases` is empty.")
    output = Path(plain["output"]).expanduser()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("")
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error}.") from error

    def report(comparison: Comparison) -> None:
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(comparison.record(), ensure_ascii=False) + "\n")

    ours = OurSide(
        {
            AutoencoderCase.KIND: autoencoder_build(
                lambda case, start: make_training(config, case, start),
                channels_last=config.channels_last,
            ),
            TransformerCase.KIND: transformer_build(
                lambda case: make_transformer_training(config, case)
            ),
        }
    )
    comparisons = run_benchmark(ours, cases, peers, settings, report)
    print(comparison_table(comparisons))
    print(f"wrote {output}")


def make_training(config: DictConfig, case: AutoencoderCase, start: int | None) -> Any:
    """The stage-1 training module of a case.

    Args:
        config: of the command.
        case: architecture.
        start: step of the discriminator's start; None for neither discriminator nor perceptual
            loss.
    """
    vqgan = build(
        config.model,
        resolution=case.resolution,
        base_channels=case.base_channels,
        channel_multipliers=list(case.channel_multipliers),
        num_residual_blocks=case.num_residual_blocks,
        attention_resolutions=list(case.attention_resolutions),
        latent_channels=case.latent_channels,
        quantizer={"codebook_size": case.codebook_size, "codebook_dim": case.codebook_dim},
    )
    adversary = perceptual = None
    if start is not None:
        perceptual = build(config.perceptual)
        discriminator = {
            "base_channels": case.discriminator_channels,
            "num_layers": case.discriminator_layers,
        }
        adversary = build(
            config.adversary,
            start=start,
            max_steps=config.training.max_steps,
            discriminator=discriminator,
        )
    chosen = {name: True for name in ("compile", "channels_last") if config[name]}
    return build(config.training, vqgan=vqgan, perceptual=perceptual, adversary=adversary, **chosen)


def make_transformer_training(config: DictConfig, case: TransformerCase) -> Any:
    """The stage-2 training module of a case.

    With guidance it is a model of one class, trained without it now and then.
    """
    conditioning: Conditioning = Unconditional()
    if case.with_guidance:
        conditioning = ClassLabel(1, dropout=0.1)
    transformer = build(
        config.gpt,
        codebook_size=case.codebook_size,
        num_prefix_ids=conditioning.num_prefix_ids,
        context_length=case.num_tokens,
        num_layers=case.num_layers,
        num_heads=case.num_heads,
        embed_dim=case.embed_dim,
    )
    tokenizer = build(  # of the smallest size: the tokens are there already
        config.model,
        resolution=2,
        base_channels=8,
        channel_multipliers=[1],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=8,
        quantizer={"codebook_size": case.codebook_size, "codebook_dim": 1},
    )
    return build(
        config.gpt_training,
        transformer=transformer,
        tokenizer=tokenizer,
        conditioning=conditioning,
        grid_size=case.grid_size,
        **({"compile": True} if config.compile else {}),
    )


def _case(name: str, values: dict[str, Any]) -> BenchmarkCase:
    """A case of the kind that it names."""
    kind = values.get("kind")
    if kind not in CASES:
        raise UserError(f"cases.{name}.kind is one of {', '.join(CASES)}, not {kind!r}.")
    others = {key: value for key, value in values.items() if key != "kind"}
    case: BenchmarkCase = _typed(CASES[kind].__name__, {"name": name, **others})
    return case


def _typed(name: str, values: dict[str, Any]) -> Any:
    """One of the benchmark's data classes from its part of the configuration."""
    return build(OmegaConf.create({"_target_": f"taming.workflows.benchmark.{name}", **values}))
