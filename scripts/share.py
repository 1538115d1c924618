"""See `python scripts/share.py --help` and the README."""

from _start import start

if __name__ == "__main__":
    start("share")
