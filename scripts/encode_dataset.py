"""See `python scripts/encode_dataset.py --help` and the README."""

from _start import start

if __name__ == "__main__":
    start("encode_dataset")
