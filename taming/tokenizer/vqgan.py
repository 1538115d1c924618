"""The VQGAN: encoder, quantizer and decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Len, Lt, MinLen
from torch import Tensor, nn

from taming.autoencoder import AutoencoderShape, Decoder, Encoder
from taming.quantizers import QuantizerOutput, Size, build_quantizer
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError
from taming.tokenizer.interface import Tokenizer

__all__ = ["VQGAN", "VQGANOutput"]


@dataclass
class VQGANOutput:
    """The `reconstructions` `(b c H W)` and the quantizer's output of a forward pass."""

    reconstructions: Tensor
    quantizer: QuantizerOutput


class VQGAN(Tokenizer):
    """Vector-quantized autoencoder (Esser et al. 2021, "Taming Transformers", section 3.1).

    Images are float; -1 is black and 1 is white.

    Args:
        quantizer: `kind` and arguments of the quantizer (see `taming.quantizers`).
        image_channels: channels of the images: 3, 1, or the classes of a one-hot label map.
        resolution: (height, width) the model is trained at, see `Tokenizer`.
        base_channels: width of the first level.
        channel_multipliers: width of each level in units of `base_channels`. Each level after the
            first halves height and width, so the downsample factor is 2^(levels − 1).
        num_residual_blocks: residual blocks per level (one more in the decoder).
        attention_resolutions: heights of the levels that get an attention block after each
            residual block.
        latent_channels: width of the encoder's output, before the 1×1 convolution to the
            codebook's width.
        dropout: inside residual blocks.
        label_maps: whether the images are one-hot label maps; `decode` then returns logits.
            None: images of other than 1 or 3 channels are label maps.
    """

    kind = "vqgan"
    part = "tokenizer"

    def __init__(
        self,
        *,
        quantizer: Mapping[str, Any],
        image_channels: Size = 3,
        resolution: Size | Annotated[Sequence[Size], Len(2, 2)] = 256,
        base_channels: Size = 128,
        channel_multipliers: Annotated[Sequence[Size], MinLen(1)] = (1, 1, 2, 2, 4),
        num_residual_blocks: Size = 2,
        attention_resolutions: Sequence[int] = (16,),
        latent_channels: Size = 256,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        label_maps: bool | None = None,
    ) -> None:
        super().__init__(resolution, 2 ** (len(channel_multipliers) - 1))
        self.image_channels = image_channels
        self.label_maps = image_channels not in (1, 3) if label_maps is None else label_maps
        sizes: dict[str, Any] = {
            "image_channels": image_channels,
            "base_channels": base_channels,
            "channel_multipliers": list(channel_multipliers),
            "num_residual_blocks": num_residual_blocks,
            "attention_resolutions": list(attention_resolutions),
            "latent_channels": latent_channels,
            "dropout": float(dropout),
        }
        self.config: dict[str, Any] = {
            "resolution": list(self.resolution),
            **sizes,
            "label_maps": self.label_maps,
            "quantizer": dict(quantizer),
        }
        shape = AutoencoderShape(resolution=self.resolution[0], **sizes)
        self.encoder = Encoder(shape)
        self.quantizer = build_quantizer(quantizer)
        self.codebook_size = self.quantizer.codebook_size
        self.pre_quantizer = nn.Conv2d(latent_channels, self.quantizer.codebook_dim, 1)
        self.post_quantizer = nn.Conv2d(self.quantizer.codebook_dim, latent_channels, 1)
        self.decoder = Decoder(shape)

    @property
    def level_heights(self) -> list[int]:
        """Height of each level's features, largest first; see `attention_resolutions`."""
        num_levels = len(self.config["channel_multipliers"])
        return [self.resolution[0] >> level for level in range(num_levels)]

    @property
    def last_layer(self) -> Tensor:
        """The weight of the decoder's last convolution, where the adaptive weight is measured."""
        return self.decoder.conv_out.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights and the results."""
        return self.last_layer.device

    def encode_latents(self, images: Tensor) -> Tensor:
        """Returns what the quantizer receives, before any normalisation.

        Maps `(b c H W)` to `(b d h w)`.

        Raises:
            UserError: if dtype, channels or size of the images do not fit the model.
        """
        if not images.is_floating_point():
            raise UserError(
                f"the model takes float images in [-1, 1], not {images.dtype}. Convert pixels from "
                "0 to 255 by pixels / 127.5 - 1."
            )
        if images.ndim != 4 or images.shape[1] != self.image_channels:
            raise UserError(
                f"the model takes images (b {self.image_channels} H W), not {tuple(images.shape)}."
            )
        self.grid_size_for(images.shape[2:])
        return self.pre_quantizer(self.encoder(images))

    def encode(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` to `(b h w)` int64, deterministically, in any mode."""
        with evaluation_mode(self):  # no dropout, no codebook statistics
            return self.quantizer(self.encode_latents(images)).indices

    def decode(self, indices: Tensor) -> Tensor:
        """Maps `(b h w)` int64 to `(b c H W)`: the decoder's raw output, not clamped, or logits.

        Raises:
            UserError: if an index is not in the codebook.
        """
        in_range = (indices >= 0) & (indices < self.codebook_size)
        if indices.is_floating_point() or not in_range.all():
            raise UserError(
                f"the indices to decode must be integers from 0 to {self.codebook_size - 1}."
            )
        return self.decode_quantized(self.quantizer.lookup(indices))

    def decode_quantized(self, quantized: Tensor) -> Tensor:
        """Maps `(b d h w)` to `(b c H W)`."""
        quantized = quantized.to(self.post_quantizer.weight.dtype)  # from the quantizer's float32
        return self.decoder(self.post_quantizer(quantized))

    def forward(self, images: Tensor) -> VQGANOutput:
        """Reconstructs images `(b c H W)`."""
        latents = self.encode_latents(images)  # (b d h w)
        quantizer_output = self.quantizer(latents)
        return VQGANOutput(self.decode_quantized(quantizer_output.quantized), quantizer_output)
