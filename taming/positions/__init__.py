"""Positions: modules that tell where in the sequence, or on the grid, a token stands.

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
