"""Tiny generators of every kind of transformer and condition, for the tests beside this file."""

from typing import Any

import torch
from torch import Tensor, nn

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.serialization import SavedModel
from taming.tokenizer import CellClasses, Tokenizer, height_and_width
from taming.transformer import GPT, GPTConfig

GRID = (3, 4)
MODERN = {"norm": "rms_norm", "feed_forward": "swiglu", "bias": False, "qk_norm": True}
CLASS = ClassLabel(3, dropout=0.1)
IMAGE = ImageCondition(5, (3, 2), dropout=0.1)
CONTEXT = ImageCondition(5, (3, 2), dropout=0.1, as_context=True)
BOTH_WAYS = {"bidirectional_prefix": True}
KINDS: dict[str, tuple[Conditioning, dict[str, Any]]] = {
    "unconditional": (Unconditional(), {}),
    "unconditional sinusoidal_2d": (Unconditional(), {"positions": "sinusoidal_2d"}),
    "unconditional rotary_2d": (Unconditional(), {"positions": "rotary_2d"}),
    "class": (CLASS, {}),
    "class learned": (CLASS, {"positions": "learned"}),
    "class sinusoidal_2d": (CLASS, {"positions": "sinusoidal_2d"}),
    "class rotary_2d": (CLASS, {"positions": "rotary_2d", **MODERN}),
    "class zero rotary_2d": (
        CLASS,
        {"positions": "rotary_2d", "zero_prefix_rotation": True, "tie_head": True},
    ),
    "image": (IMAGE, {}),
    "image learned both ways": (IMAGE, {"positions": "learned", **BOTH_WAYS}),
    "image sinusoidal_2d": (IMAGE, {"positions": "sinusoidal_2d"}),
    "image sinusoidal_2d both ways": (IMAGE, {"positions": "sinusoidal_2d", **BOTH_WAYS}),
    "image rotary_2d": (IMAGE, {"positions": "rotary_2d", **BOTH_WAYS}),
    "context": (CONTEXT, {}),
    "context learned": (CONTEXT, {"positions": "learned", **MODERN}),
    "context sinusoidal_2d": (CONTEXT, {"positions": "sinusoidal_2d"}),
    "context rotary_2d": (CONTEXT, {"positions": "rotary_2d"}),
    "unconditional any order": (Unconditional(), {"order": "any"}),
    "class any order learned": (CLASS, {"order": "any", "positions": "learned"}),
    "image any order sinusoidal_2d both ways": (
        IMAGE,
        {"order": "any", "positions": "sinusoidal_2d", **BOTH_WAYS},
    ),
    "context any order rotary_2d": (CONTEXT, {"order": "any", "positions": "rotary_2d"}),
}


class GreyTokenizer(Tokenizer):
    """Shows code i of 8 as 2 × 2 pixels of one grey, code 7 as brighter than white."""

    codebook_size = 8
    label_maps = False

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def decode(self, indices: Tensor) -> Tensor:
        assert not self.training
        grey = (indices * self.scale - 2.0)[:, None].expand(-1, 3, -1, -1)
        return grey.repeat_interleave(2, 2).repeat_interleave(2, 3)

    def to_saved(self) -> SavedModel:
        return SavedModel("vqgan", {}, self.state_dict())

    @classmethod
    def from_saved(cls, saved: SavedModel) -> "GreyTokenizer":
        tokenizer = cls()
        tokenizer.load_state_dict(saved.state)
        return tokenizer.eval()


def tiny(
    conditioning: Conditioning, grid_size: Any = GRID, tokenizer: Any = None, **changes: Any
) -> ImageGenerator:
    """A generator with random weights; the changes are of its transformer's config."""
    torch.manual_seed(0)
    config = {
        **conditioning.transformer_config(height_and_width(grid_size)),
        "codebook_size": 8,
        "num_layers": 2,
        "num_heads": 2,
        "embed_dim": 16,
        **changes,
    }
    cells = CellClasses(5, 2, (6, 4)) if conditioning.takes_images else None
    transformer = GPT(GPTConfig(**config))
    return ImageGenerator(tokenizer, transformer, conditioning, grid_size, cells).eval()


def build(name: str) -> ImageGenerator:
    conditioning, changes = KINDS[name]
    model = tiny(conditioning, dropout=0.2, **changes)
    with torch.no_grad():
        for parameter in model.transformer.parameters():  # far from uniform, and nothing is a zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def condition(name: str, count: int = 3, seed: int = 1, scale: int = 1) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    if name.startswith("unconditional"):
        return None
    if name.startswith("class"):
        return torch.randint(3, (count,), generator=generator)
    cells = torch.randint(5, (count, 3 * scale, 2 * scale), generator=generator)
    return CellClasses(5, 2, (6, 4)).decode(cells)


def sampling(**settings: Any) -> SamplingOptions:
    """Flat settings, as the commands have them, as options."""
    prefix = "guidance_"
    guidance = {n.removeprefix(prefix): settings.pop(n) for n in list(settings) if prefix in n}
    return SamplingOptions(guidance=Guidance(**guidance), **settings)


def draw(
    model: ImageGenerator,
    condition: Tensor | None = None,
    count: int = 3,
    given_tokens: Tensor | None = None,
    **settings: Any,
) -> Tensor:
    """Tokens of `count` images with flat settings."""
    options = sampling(**settings)
    return model.sample_tokens(count, condition, given_tokens=given_tokens, options=options)
