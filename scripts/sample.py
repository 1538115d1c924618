import _require_taming  # noqa: F401

from taming.cli.sample import main

if __name__ == "__main__":
    main()
