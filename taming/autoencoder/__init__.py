"""The convolutional encoder and decoder of the VQGAN."""

from taming.autoencoder.blocks import AutoencoderShape
from taming.autoencoder.decoder import Decoder
from taming.autoencoder.encoder import Encoder

__all__ = ["AutoencoderShape", "Decoder", "Encoder"]
