"""Positions of tokens in the sequence, or their rows and columns in the grid.

Sinusoidal and learned positions are added to the embeddings. Rotary positions rotate queries and
keys.
"""

from taming.positions.absolute import (
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
