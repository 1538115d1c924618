"""See `python scripts/studio.py --help` and docs/studio.md."""

from _start import start

if __name__ == "__main__":
    start("studio")
