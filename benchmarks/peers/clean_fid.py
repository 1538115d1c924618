"""Prints clean-fid's Fréchet distance between the statistics in two .npz files."""

import sys

import numpy as np
from cleanfid.fid import frechet_distance

first, second = map(np.load, sys.argv[1:])
print(frechet_distance(first["mu"], first["sigma"], second["mu"], second["sigma"]))
