"""Modules that tell the model each token's position in the sequence, or its row and column.

Sinusoidal and learned ones add to the embeddings, rotary ones turn queries and keys.
"""

from taming.positions.added import (
    LearnedPositions,
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
    sinusoidal_encoding,
)
from taming.positions.rotary import RotaryPositions2D

__all__ = [
    "LearnedPositions",
    "RotaryPositions2D",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "grid_coordinates",
    "sinusoidal_encoding",
]
