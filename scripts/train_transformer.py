"""See `python scripts/train_transformer.py --help` and the README."""

from taming.cli.train_transformer import main

if __name__ == "__main__":
    main()
