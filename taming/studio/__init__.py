"""A web application on this machine, to play with a model and to look into it; built on Gradio."""

from taming.studio.app import build_studio, check_access, serve
from taming.studio.models import StudioModel

__all__ = ["StudioModel", "build_studio", "check_access", "serve"]
