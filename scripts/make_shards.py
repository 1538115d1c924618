"""See `python scripts/make_shards.py --help` and the README."""

from _start import start

if __name__ == "__main__":
    start("make_shards")
