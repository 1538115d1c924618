"""`studio`: a web application on this machine, to play with a model and to look into it."""

from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import find_device, resolved
from taming.cli.setting_types import check_types
from taming.generation import SamplingDtype
from taming.runtime.errors import UserError

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Serves the studio until it is interrupted."""
    plain = resolved(config)
    check_types(config, {"dtype": SamplingDtype})
    if find_spec("gradio") is None:
        raise UserError("the studio needs Gradio: pip install -e '.[studio]'")
    from taming.report.records import is_run  # slow to import
    from taming.studio import StudioModel, build_studio, check_access, serve

    check_access(plain["host"], plain["password"])
    device = find_device(plain["device"])
    path = Path(plain["checkpoint"]).expanduser()
    run = path if is_run(path) else None
    model = other = None
    try:
        model = StudioModel.load(plain["checkpoint"], device, plain["dtype"])
    except UserError as error:
        if run is None:
            raise
        print(f"note: {error} The training can be watched, and nothing else.")
    if plain["other"] is not None:
        other = StudioModel.load(plain["other"], device, plain["dtype"])
    studio = build_studio(model, other, run)
    serve(studio, **{name: plain[name] for name in ("host", "port", "user", "password")})
