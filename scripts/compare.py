import _require_taming  # noqa: F401

from taming.cli.compare import main

if __name__ == "__main__":
    main()
