"""See `python scripts/train_vqgan.py --help` and the README."""

from taming.cli.train_vqgan import main

if __name__ == "__main__":
    main()
