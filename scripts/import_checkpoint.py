"""See `python scripts/import_checkpoint.py --help` and the README."""

from _start import start

if __name__ == "__main__":
    start("import_checkpoint")
