"""A web application, built on Gradio, to draw with a model and to look into it."""

from taming.studio.app import build_studio, check_access, serve
from taming.studio.models import StudioModel

__all__ = ["StudioModel", "build_studio", "check_access", "serve"]
