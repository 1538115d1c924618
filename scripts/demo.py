"""See `make demo` and the README."""

from taming.cli.demo import main

if __name__ == "__main__":
    main()
