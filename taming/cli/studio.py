"""`studio`: serves a web application to use a model and to look into it."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="studio", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Serves the studio until it is interrupted."""
    from importlib.util import find_spec
    from pathlib import Path

    from taming.cli.setting_types import check_types
    from taming.generation import SamplingDtype
    from taming.runtime.devices import find_device
    from taming.runtime.errors import UserError

    check_types(config, {"dtype": SamplingDtype})
    if find_spec("gradio") is None:
        raise UserError("the studio needs Gradio: pip install -e '.[studio]'")
    from taming.report.records import is_run
    from taming.studio import StudioModel, build_studio, check_access, serve

    check_access(config.host, config.password)
    device = find_device(config.device)
    path = Path(config.checkpoint).expanduser()
    run = path if is_run(path) else None
    model = other = None
    try:
        model = StudioModel.load(config.checkpoint, device, config.dtype)
    except UserError as error:
        if run is None:
            raise
        print(f"note: {error} The studio only shows how the training progresses.")
    if config.other is not None:
        other = StudioModel.load(config.other, device, config.dtype)
    studio = build_studio(model, other, run)
    serve(studio, **{name: config[name] for name in ("host", "port", "user", "password")})
