"""What is measured: architectures, batches, and what is done with them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from taming.errors import UserError

__all__ = [
    "CASES",
    "MEASUREMENTS",
    "AutoencoderCase",
    "BenchmarkCase",
    "TransformerCase",
    "case_of",
    "check_measurements",
]


@dataclass(frozen=True, kw_only=True)
class BenchmarkCase(ABC):
    """One architecture and batch, the same on all sides.

    Attributes:
        name: of the case.
        batch_size: images at once.
        measurements: which of `MEASUREMENTS` are made of it; None: all.
        KIND: which stage it is of.
        MEASUREMENTS: what can be measured, and its title in the table.
    """

    KIND: ClassVar[str]
    MEASUREMENTS: ClassVar[Mapping[str, str]]

    name: str
    batch_size: int
    measurements: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_measurements(self.measurements, self.MEASUREMENTS, f"cases.{self.name}.measurements")

    def chosen(self, measurements: Sequence[str] | None) -> list[str]:
        """Those of its measurements that are also among the given ones; None: of all."""
        return [
            name
            for name in self.MEASUREMENTS
            if all(some is None or name in some for some in (self.measurements, measurements))
        ]

    @abstractmethod
    def work(self, measurement: str) -> dict[str, int]:
        """What one call of a measurement gets done, by unit."""

    @abstractmethod
    def passes_over_weights(self, measurement: str) -> int:
        """How often one call reads all weights for a single token a sequence; 0: for many.

        That is what the memory's bandwidth limits, and no other call.
        """

    @property
    @abstractmethod
    def shape(self) -> str:
        """The batch in words."""


@dataclass(frozen=True, kw_only=True)
class AutoencoderCase(BenchmarkCase):
    """Stage 1.

    Attributes:
        resolution: height and width of the images.
        base_channels, channel_multipliers, num_residual_blocks, attention_resolutions,
            latent_channels: of encoder and decoder, see `VQGAN`.
        codebook_size, codebook_dim: of the quantizer.
        discriminator_channels, discriminator_layers: of the patch discriminator.
    """

    KIND = "autoencoder"
    MEASUREMENTS: ClassVar[Mapping[str, str]] = {
        "step": "training step, discriminator on",
        "step_before_start": "training step before its start",
        "autoencoder_step": "autoencoder's training step",
        "encode": "encode",
        "decode": "decode",
    }

    resolution: int
    base_channels: int
    channel_multipliers: Sequence[int]
    num_residual_blocks: int
    attention_resolutions: Sequence[int]
    latent_channels: int
    codebook_size: int
    codebook_dim: int
    discriminator_channels: int = 64
    discriminator_layers: int = 3

    def work(self, measurement: str) -> dict[str, int]:
        """Images."""
        return {"images": self.batch_size}

    def passes_over_weights(self, measurement: str) -> int:
        """None: computing is the limit."""
        return 0

    @property
    def shape(self) -> str:
        """Of the images."""
        return f"images {self.batch_size}×3×{self.resolution}×{self.resolution}"


@dataclass(frozen=True, kw_only=True)
class TransformerCase(BenchmarkCase):
    """Stage 2: a GPT with LayerNorm, GELU, learned positions and a head of its own.

    That is what GPT-2 and CompVis' minGPT are, too. A sequence is one start id and `num_tokens`
    tokens, of which the last is never an input: as many inputs as tokens.

    Sampling draws all tokens of `batch_size` images from the start id, at temperature 1, with the
    keys and values of earlier tokens cached. With guidance each image is two sequences for our
    transformer. Programs that know no guidance draw twice as many sequences instead: the same work
    of the transformer, and only `batch_size` images counted.

    Attributes:
        num_tokens: of an image.
        num_layers, num_heads, embed_dim: see `GPT`.
        codebook_size: number of codes.
        top_k: most probable tokens that are drawn among.
        guidance_scale: of sampling; 1: none.
    """

    KIND = "transformer"
    MEASUREMENTS: ClassVar[Mapping[str, str]] = {
        "gpt_step": "training step of the transformer",
        "sample": "sampling",
        "sample_compiled": "sampling, ours compiled",
    }

    num_tokens: int
    num_layers: int
    num_heads: int
    embed_dim: int
    codebook_size: int
    top_k: int = 100
    guidance_scale: float = 1.0

    @property
    def grid_size(self) -> tuple[int, int]:
        """(height, width): a square if the tokens fill one, else a row."""
        side = math.isqrt(self.num_tokens)
        return (side, side) if side * side == self.num_tokens else (1, self.num_tokens)

    @property
    def with_guidance(self) -> bool:
        """Whether sampling goes through the transformer with and without a condition."""
        return self.guidance_scale != 1

    def work(self, measurement: str) -> dict[str, int]:
        """Tokens of images, and steps of training."""
        tokens = {"tokens": self.batch_size * self.num_tokens}
        return {"steps": 1, **tokens} if measurement == "gpt_step" else tokens

    def passes_over_weights(self, measurement: str) -> int:
        """One for each token of an image that is sampled."""
        return 0 if measurement == "gpt_step" else self.num_tokens

    @property
    def shape(self) -> str:
        """Of the tokens."""
        guided = f", guidance {self.guidance_scale:g}" if self.with_guidance else ""
        return f"tokens {self.batch_size}×{self.num_tokens}{guided}"


CASES: dict[str, type[BenchmarkCase]] = {
    case.KIND: case for case in (AutoencoderCase, TransformerCase)
}
MEASUREMENTS = {name: text for case in CASES.values() for name, text in case.MEASUREMENTS.items()}


def case_of(settings: Mapping[str, Any]) -> BenchmarkCase:
    """The case that a side is told of; see `BenchmarkSettings.for_side`."""
    kind = CASES[settings["kind"]]
    return kind(**{field.name: settings[field.name] for field in fields(kind)})


def check_measurements(
    measurements: Sequence[str] | None, known: Mapping[str, str], where: str
) -> None:
    """Raises a `UserError` if there are none, or unknown ones; None is all of them."""
    if measurements is None:
        return
    unknown = [name for name in measurements if name not in known]
    if unknown or not measurements:
        raise UserError(
            f"{where} must be some of {', '.join(known)}, not {', '.join(unknown) or 'none'}."
        )
