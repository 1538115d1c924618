"""Train an image generator on your own pictures: a VQGAN and a GPT over its codebook tokens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taming.generation import ImageGenerator
    from taming.tokenizer import VQGAN

__all__ = ["VQGAN", "ImageGenerator"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "VQGAN":
        from taming.tokenizer import VQGAN

        return VQGAN
    if name == "ImageGenerator":
        from taming.generation import ImageGenerator

        return ImageGenerator
    raise AttributeError(f"module 'taming' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
