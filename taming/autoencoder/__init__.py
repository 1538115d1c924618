"""The convolutional encoder and decoder of the VQGAN."""

from taming.autoencoder.decoder import Decoder
from taming.autoencoder.encoder import Encoder

__all__ = ["Decoder", "Encoder"]
