"""Modules that tell the model each token's position in the sequence, or its row and column.

Sinusoidal and learned ones add to the embeddings, rotary ones turn queries and keys.
"""

from taming.positions.grid import grid_coordinates
from taming.positions.learned import LearnedPositions
from taming.positions.rotary import RotaryPositions2D
from taming.positions.sinusoidal import (
    SinusoidalPositions,
    SinusoidalPositions2D,
    sinusoidal_encoding,
)

__all__ = [
    "LearnedPositions",
    "RotaryPositions2D",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "grid_coordinates",
    "sinusoidal_encoding",
]
