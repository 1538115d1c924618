"""See `python scripts/reconstruct.py --help` and the README."""

try:
    from taming.cli.reconstruct import main
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("taming"):
        raise
    raise SystemExit(
        "error: this Python does not find this project's package `taming`. Either it is not "
        "installed here: run `pip install .`, or use .venv/bin/python. Or an older package of the "
        "same name hides it: run `pip uninstall taming-transformers`."
    ) from None

if __name__ == "__main__":
    main()
