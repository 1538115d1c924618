"""GPT: a decoder-only transformer that predicts each codebook token from those before it.

Esser et al. 2021, section 3.2: p(s) = ∏ᵢ p(sᵢ | s₀ … sᵢ₋₁, c), the condition c being the prefix.
"""

import math
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from taming.attention import KeyValueCache
from taming.errors import UserError
from taming.positions import LearnedPositions, SinusoidalPositions
from taming.serialization import SavedModel, load_saved_model, save_model_directory
from taming.transformer.block import TransformerBlock

__all__ = ["GPT"]

SINUSOID_SCALE = 0.05


class GPT(nn.Module):
    """The transformer of stage 2.

    The input is a prefix, which stands for the condition, and then image tokens; each has an
    embedding table of its own, so that a class label is never mistaken for a code.

    Args:
        codebook_size: number of image tokens there are, and of logits.
        num_prefix_ids: number of prefix ids there are.
        context_length: longest input, prefix and tokens together.
        num_layers: transformer blocks.
        num_heads: attention heads in each.
        embed_dim: width d.
        positions: `"sinusoidal"` or `"learned"`.
        dropout: in the blocks, on what they add.
        attention_dropout: in the blocks, on attention weights.
        embedding_dropout: on the embeddings.
        tie_head: the head's matrix is that of the token embedding (Press and Wolf 2017).
    """

    def __init__(
        self,
        *,
        codebook_size: int,
        num_prefix_ids: int,
        context_length: int,
        num_layers: int,
        num_heads: int,
        embed_dim: int,
        positions: str = "sinusoidal",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        tie_head: bool = False,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            "codebook_size": codebook_size,
            "num_prefix_ids": num_prefix_ids,
            "context_length": context_length,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "embed_dim": embed_dim,
            "positions": positions,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "embedding_dropout": embedding_dropout,
            "tie_head": tie_head,
        }
        self.codebook_size = codebook_size
        self.num_prefix_ids = num_prefix_ids
        self.context_length = context_length

        self.prefix_embedding = nn.Embedding(num_prefix_ids, embed_dim)
        self.token_embedding = nn.Embedding(codebook_size, embed_dim)
        self.positions: SinusoidalPositions | LearnedPositions
        if positions == "sinusoidal":
            self.positions = SinusoidalPositions(embed_dim, context_length, scale=SINUSOID_SCALE)
        elif positions == "learned":
            self.positions = LearnedPositions(context_length, embed_dim)
        else:
            raise UserError(f'positions must be "sinusoidal" or "learned", not {positions!r}.')
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                embed_dim, num_heads, dropout=dropout, attention_dropout=attention_dropout
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, codebook_size, bias=False)
        if tie_head:
            self.head.weight = self.token_embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialises all weights anew.

        | weights                                      | values                                  |
        |----------------------------------------------|-----------------------------------------|
        | linear maps, embeddings, learned positions   | N(0, 0.02)                              |
        | maps that end a branch: attention.output,    | N(0, 0.02 / √(2·num_layers)), so that   |
        | feed_forward.contract                        | the 2·num_layers sums keep their scale  |
        | biases                                       | 0                                       |
        | LayerNorm                                    | scale 1, shift 0                        |

        The second number of N is the standard deviation. Sinusoids, with a root mean square of
        0.71, would drown embeddings of 0.02, so `SINUSOID_SCALE` makes them smaller, 0.035.
        Making the embeddings larger instead, by √d as Vaswani et al. 2017 do before their post-norm
        blocks, learns more slowly here: beside a large sum, what the pre-norm blocks add is small.
        """
        residual_std = 0.02 / math.sqrt(2 * max(len(self.blocks), 1))
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                ends_branch = name.endswith(("attention.output", "feed_forward.contract"))
                nn.init.normal_(module.weight, std=residual_std if ends_branch else 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def forward(self, prefix: Tensor, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Logits for what follows each position of the input.

        Args:
            prefix: `(b p)` int64 prefix ids.
            tokens: `(b n)` int64 image tokens; either may have length 0.
            cache: of earlier inputs, which these follow and to which they are appended.

        Returns:
            `(b p+n codebook_size)`.

        Raises:
            ValueError: if all inputs together are longer than the context.
        """
        offset = 0 if cache is None else cache.length
        length = offset + prefix.shape[1] + tokens.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"a sequence of {length} (prefix and tokens) is longer than the context of this "
                f"model, {self.context_length}: use fewer tokens or a model with a longer context."
            )
        embeddings = torch.cat(
            [self.prefix_embedding(prefix), self.token_embedding(tokens)], dim=1
        )  # (b p+n d)
        x = self.positions(embeddings, offset)
        x = self.embedding_dropout(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache.layers[layer])  # (b p+n d)
        return self.head(self.norm(x))

    def token_logits(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        The last token is only predicted and never an input, so prefix and tokens may be one longer
        than the context.

        Args:
            prefix: `(b p)`, p at least 1: its last id predicts the first token.
            tokens: `(b n)`.

        Returns:
            `(b n codebook_size)`.
        """
        num_prefix, num_tokens = prefix.shape[1], tokens.shape[1]
        if num_prefix == 0:
            raise ValueError("the first token has nothing to be predicted from: give a prefix.")
        logits = self(prefix, tokens[:, :-1])  # (b p+n-1 v)
        return logits[:, num_prefix - 1 : num_prefix - 1 + num_tokens]

    def to_saved(self) -> SavedModel:
        """The model as plain data; its tensors share memory with the model."""
        return SavedModel("gpt", dict(self.config), dict(self.state_dict()))

    @classmethod
    def from_saved(cls, saved: SavedModel, where: str = "the model") -> Self:
        """Rebuilds a model, in eval mode.

        Args:
            saved: what `to_saved` made.
            where: how error messages name it.

        Raises:
            UserError: if it is of another kind, or config and weights do not fit this program.
        """
        saved.require("gpt", where)
        try:
            model = cls(**saved.config)
        except TypeError as error:
            raise UserError(
                f"the config of the transformer in {where} is wrong: {error}."
            ) from error
        try:
            model.load_state_dict(saved.state)
        except RuntimeError as error:
            problems = [line.strip() for line in str(error).splitlines()[1:]]
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise UserError(
                f"the transformer's weights in {where} do not fit its config: {problems[0]}{more}"
            ) from error
        return model.eval()

    def save_pretrained(self, directory: str | Path) -> Path:
        """Writes config.json and model.safetensors."""
        return save_model_directory(self.to_saved(), directory)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Loads what `save_pretrained` wrote, in eval mode; of a generator its transformer.

        Raises:
            MissingPathError: if the path does not exist.
            UserError: if what is there is not a transformer.
        """
        saved = load_saved_model(path)
        if saved.kind == "generator" and "transformer" in saved.parts:
            saved = saved.parts["transformer"]
        return cls.from_saved(saved, where=str(path))
