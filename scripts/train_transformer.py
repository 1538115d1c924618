"""See `python scripts/train_transformer.py --help` and the README."""

from _start import start

if __name__ == "__main__":
    start("train_transformer")
