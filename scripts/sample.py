"""See `python scripts/sample.py --help` and the README."""

from taming.cli.sample import main

if __name__ == "__main__":
    main()
