"""The settings of drawing: how to draw tokens, and under which condition."""

from functools import partial
from typing import Any

import gradio as gr
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from taming.conditioning import ImageCondition
from taming.data import LabelMapReader
from taming.generation import ImageGenerator, SamplingOptions
from taming.pictures import palette_of
from taming.runtime.errors import UserError
from taming.studio.components import in_range, paint_picture
from taming.studio.events import errors_in_page
from taming.studio.uploads import read_label_map, to_images

__all__ = ["ConditionControls", "DrawingControls", "SamplingControls"]

MAX_IMAGES = 64
IN_TURN, NO_CLASS = -1, -2  # choices that are not labels
CANVAS_SIDE = 512  # pixels, at least


class SamplingControls:
    """Number of images, temperature, top-k, top-p, guidance and seed.

    Attributes:
        components: inputs of an event; `read` takes their values.
    """

    def __init__(self, generator: ImageGenerator, num_images: int | None = 4) -> None:
        guided = generator.conditioning.can_do_without and generator.conditioning.dropout > 0
        number = partial(gr.Number, precision=0, minimum=0, min_width=100)
        with gr.Row():
            images = number(
                num_images or 1, label="images", info=f"1 to {MAX_IMAGES}",
                minimum=1, maximum=MAX_IMAGES, visible=num_images is not None,
            )  # fmt: skip
            seed = number(0, label="seed", info="same seed, same image")
        with gr.Row():
            top_k = number(0, label="top-k", info="codes; 0: all")
            limits = {"precision": None, "minimum": 0.01, "maximum": 1, "step": 0.05}
            top_p = number(1, label="top-p", info="0 to 1; 1: all", **limits)
        temperature = gr.Slider(
            0, 2, 1, step=0.05, label="temperature", info="0: the most probable"
        )
        guidance = gr.Slider(0, 10, 1, step=0.1, label="guidance", info="1: none", visible=guided)
        numbers: list[Any] = [images, temperature, top_k, top_p, guidance, seed]
        self.components = [in_range(number) for number in numbers]

    @staticmethod
    def read(*values: Any) -> tuple[int, SamplingOptions]:
        """Returns the number of images and the options."""
        num_images, temperature, top_k, top_p, guidance, seed = values
        filters = {"temperature": temperature, "top_k": top_k or None, "top_p": top_p}
        return num_images, SamplingOptions.of(**filters, guidance_scale=guidance, seed=seed)


class ConditionControls:
    """A class to choose, or a condition image to paint; nothing for a model without conditions.

    Attributes:
        components: inputs of an event; `read` takes their values.
    """

    def __init__(self, generator: ImageGenerator, in_turn: bool = True) -> None:
        self.generator = generator
        conditioning = generator.conditioning
        self.palette: np.ndarray | None = None
        self.names: list[str] = []
        self.components: list[Any] = []
        if conditioning.num_classes is not None:
            names = conditioning.class_names or range(conditioning.num_classes)
            self.names = [str(name) for name in names]
            choices = [(name, label) for label, name in enumerate(self.names)]
            choices = [("all in turn", IN_TURN)] * in_turn + choices
            choices += [("no class", NO_CLASS)] * conditioning.can_do_without
            self.components = [gr.Dropdown(choices, value=choices[0][1], label="class")]
        elif isinstance(conditioning, ImageCondition):
            self._add_canvas(conditioning)

    def _add_canvas(self, conditioning: ImageCondition) -> None:
        tokenizer = self.generator.require_condition_tokenizer()
        self.palette = palette_of(tokenizer, conditioning.palette)
        height, width = (side * tokenizer.downsample_factor for side in conditioning.grid_size)
        factor = -(-CANVAS_SIDE // max(height, width))
        size = width * factor, height * factor
        if self.palette is None:
            self.components = [paint_picture("condition image", canvas_size=size)]
            return
        canvas = paint_picture(
            "label map: paint it; each colour is a class",
            self.palette,
            value=self._background(np.zeros((size[1], size[0]), np.uint8)),
            canvas_size=size,
            fixed_canvas=True,
        )
        self.components = [canvas]
        unlabelled = conditioning.unlabelled, conditioning.unlabelled_class
        reader = LabelMapReader(len(self.palette), *unlabelled)

        def open_file(file: str) -> Any:
            with errors_in_page():
                return self._background(read_label_map(file, reader))

        button = gr.UploadButton("open a label map file", file_types=[".png", ".tif", ".bmp"])
        button.upload(open_file, button, canvas, api_name="open_label_map")

    def _background(self, classes: np.ndarray) -> dict[str, Any]:
        """Returns class numbers `(H W)` as the background of the canvas."""
        assert self.palette is not None
        picture = Image.fromarray(self.palette[classes])
        return {"background": picture, "layers": [], "composite": picture}

    def read(self, generator: ImageGenerator, num_images: int, *values: Any) -> Tensor | None:
        """Returns labels `(b,)`, codes of condition images `(b h w)`, or None for no condition.

        The codes are for `generator`, which may differ from the generator of these controls.
        """
        if not values:
            return None
        if self.names:
            (label,) = values
            if label is None:
                raise UserError("the class is empty: choose one.")
            if label == NO_CLASS:
                return None
            if label == IN_TURN:
                return torch.arange(num_images) % len(self.names)
            return torch.full((num_images,), label)
        conditioning = generator.conditioning
        if values[0] is None and conditioning.can_do_without:
            return None
        if values[0] is None:
            raise UserError("the condition image is empty: upload or paint one.")
        tokenizer = generator.require_condition_tokenizer()
        images = to_images(values[0], tokenizer, conditioning.grid_size, self.palette)
        codes = tokenizer.encode(images.to(generator.device)).cpu()  # (1 h w)
        return codes.expand(num_images, -1, -1)

    def captions(self, condition: Tensor | None) -> list[str] | None:
        """Returns the name of each image's class; None without classes."""
        if not self.names or condition is None:
            return None
        return [self.names[label] for label in condition.tolist()]


class DrawingControls:
    """All settings of a drawing, and the buttons that start and cancel it.

    Attributes:
        components: inputs of an event; `read` takes their values.
    """

    def __init__(self, generator: ImageGenerator, action: str) -> None:
        self.conditions = ConditionControls(generator)
        self.sampling = SamplingControls(generator)
        self.components = [*self.sampling.components, *self.conditions.components]
        self.captions = self.conditions.captions
        with gr.Row():
            self.start = gr.Button(action, variant="primary")
            self.cancel = gr.Button("Cancel")

    def read(
        self, generator: ImageGenerator, *values: Any
    ) -> tuple[int, Tensor | None, SamplingOptions]:
        """Returns the number of images, the generator's condition for them, and the options."""
        count = len(self.sampling.components)
        num_images, options = self.sampling.read(*values[:count])
        return num_images, self.conditions.read(generator, num_images, *values[count:]), options
