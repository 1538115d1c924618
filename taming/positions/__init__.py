"""Positions: modules that add to embeddings where in the sequence they stand."""

from taming.positions.learned import LearnedPositions
from taming.positions.sinusoidal import SinusoidalPositions, sinusoidal_encoding

__all__ = ["LearnedPositions", "SinusoidalPositions", "sinusoidal_encoding"]
