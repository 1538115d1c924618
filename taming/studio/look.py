"""The page that looks into a model: an image's codes, and what the transformer makes of them."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

from taming.generation import ImageGenerator, candidates
from taming.pictures import to_uint8
from taming.runtime.errors import UserError
from taming.studio.components import in_range, show_picture, show_pictures, upload_picture
from taming.studio.controls import ConditionControls, SamplingControls
from taming.studio.drawing import Drawing, draw_rows, is_finished, num_columns
from taming.studio.events import errors_in_page, on_device, reveal
from taming.studio.maps import (
    attention_picture,
    codes_picture,
    enlarge,
    mark_code,
    single_codes,
    surprise_picture,
)
from taming.studio.models import StudioModel
from taming.transformer.orders import to_indices, to_tokens

__all__ = ["LookPage"]

NUM_CANDIDATES = 12
CODE_SIDE = 96  # least pixels of a code shown alone
ALL_LAYERS = 0
HINT = "Upload or paste a picture to see its codes{}."


class LookPage:
    """The components of the page, which its constructor adds, and what they do.

    Results stay hidden until there is an image. The first code shown is in the middle of the image,
    because attention at the first codes has hardly anything to attend to.
    """

    def __init__(self, model: StudioModel) -> None:
        self.model = model
        self.drawing = gr.State()  # the image, as a `Drawing` of b = 1
        generator = model.generator
        conditions = None
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                upload = upload_picture()
                if generator is not None:
                    conditions = ConditionControls(generator, in_turn=False)
                has_condition = conditions is not None and bool(conditions.components)
                again = gr.Button("Look again with this condition", visible=has_condition)
            with gr.Column(scale=3, min_width=280):
                source = ", or click a finished image in the other tabs" if generator else ""
                self.about = gr.Markdown(HINT.format(source))
                with gr.Row(visible=False) as self.pictures:
                    with gr.Column(min_width=240):
                        self.image = show_picture("Reconstruction: click a code", "decoded")
                    with gr.Column(min_width=240):
                        self.codes = show_picture("Each code decoded alone: click a code", "codes")
                    with gr.Column(min_width=240, visible=generator is not None):
                        self.surprise = show_picture("Surprise: bits of each code", "surprise")
        pictures = [self.image, self.codes, self.surprise]
        self.overview: list[Any] = [self.drawing, *pictures, self.about]
        with gr.Row(visible=False) as self.details:
            self._add_code()

        def condition(*values: Any) -> Tensor | None:
            if conditions is None or generator is None:
                return None
            return conditions.read(generator, 1, *values)

        def look(picture: Any, *values: Any) -> list[Any]:
            indices = model.tokenizer.encode(model.images(picture))
            pixels = to_uint8(model.tokenizer.decode(indices), model.palette)
            drawing = Drawing(to_tokens(indices).cpu(), pixels, condition(*values))
            return self._overview(drawing)

        def look_again(drawing: Drawing | None, *values: Any) -> list[Any]:
            image = _require(drawing)
            return self._overview(Drawing(image.tokens, image.pixels, condition(*values)))

        inputs = conditions.components if conditions else []
        self._show_after(
            on_device(upload.upload, look, [upload, *inputs], self.overview, name="look")
        )
        self._show_after(on_device(again.click, look_again, [self.drawing, *inputs], self.overview))

    def _add_code(self) -> None:
        """Adds the details of a single code."""
        generator, (height, width) = self.model.generator, self.model.grid_size
        with gr.Column(scale=1, min_width=260):
            info = "of the code, from 0, row by row; or click a picture"
            centre = height // 2 * width + width // 2
            self.position = _whole_number("position", info, centre, self._num_tokens - 1)
            show = gr.Button("Show this code")
            self.code_about = gr.Markdown()
            self.code = show_picture("The code decoded alone", "code", height=180)
        with gr.Column(scale=3, min_width=280, visible=generator is not None):
            layers = 1 if generator is None else len(generator.transformer.blocks)
            choices = [("all layers", ALL_LAYERS)]
            choices += [(f"layer {layer}", layer) for layer in range(1, layers + 1)]
            self.layer = gr.Dropdown(
                choices, value=ALL_LAYERS, label="attention of", visible=layers > 1
            )
            self.attention = show_picture(
                "What the prediction of this code attends to, one row per layer. Captions: "
                "layer.head, and the share of attention on the image",
                "attention",
            )
            self.candidates = show_pictures(
                "The most probable codes for this position: click one to choose it",
                "candidates",
                6,
                allow_preview=False,
            )
            on_device(show.click, *self.showing, name="show_code")  # first, for its name
            if generator is not None:
                self._add_change(generator)
        for picture in (self.image, self.codes, self.surprise):
            clicked = picture.select(
                self._clicked_position, self.drawing, self.position, api_visibility="private"
            )
            on_device(clicked.success, *self.showing)
        on_device(self.layer.input, *self.showing)

    def _add_change(self, generator: ImageGenerator) -> None:
        """Adds the controls that put another code at the position."""
        last_code = self.model.tokenizer.codebook_size - 1
        info = "for this position; or click a candidate"
        new_code = _whole_number("new code", info, 0, last_code)
        with gr.Accordion("How to draw the rest", open=False):
            sampling = SamplingControls(generator, num_images=None)
        with gr.Row():
            button = gr.Button("Change the code and redraw the rest", variant="primary")
            cancel = gr.Button("Cancel")
        self.candidates.select(
            _clicked_candidate, self.candidates, new_code, api_visibility="private"
        )

        def change(
            drawing: Drawing | None, position: int, code: int, *values: Any
        ) -> Iterator[list[Any]]:
            """Puts another code at a position and redraws the codes after it."""
            drawing = _require(drawing)
            _, options = sampling.read(*values)
            tokens = torch.cat([drawing.tokens[:, :position], torch.tensor([[code]])], 1)
            step = drawing
            for step in draw_rows(generator, 1, drawing.condition, options, tokens):
                yield [gr.skip(), enlarge(step.pixels[0]), gr.skip(), gr.skip(), "drawing …"]
            yield self._overview(step)

        inputs = [self.drawing, self.position, new_code, *sampling.components]
        self._show_after(
            on_device(button.click, change, inputs, self.overview, name="change", cancel=cancel)
        )

    def listen_to(self, grid: gr.Image, drawing: gr.State, tabs: gr.Tabs, tab: str) -> None:
        """Makes a click on an image of a grid open the image here."""

        def open_image(event: gr.SelectData, picture: Image.Image, images: Drawing | None) -> Any:
            if images is None or not is_finished(images.tokens, self._num_tokens):
                raise UserError("this image is not finished: wait until it is.")
            count = len(images.tokens)
            across = num_columns(count)
            number = _clicked_cell(event, picture.size, -(-count // across), across)
            if number >= count:
                raise UserError("there is no image at this place: click an image.")
            return [gr.Tabs(selected=tab), *self._overview(images.one(number))]

        inputs, outputs = [grid, drawing], [tabs, *self.overview]
        self._show_after(on_device(grid.select, open_image, inputs, outputs, name="open_image"))

    def _show_after(self, event: Any) -> None:
        """Shows the results, and the code at the position, after an image was opened."""
        for row in (self.pictures, self.details):
            reveal(event.success, row)
        on_device(event.success, *self.showing)

    @property
    def showing(self) -> tuple[Any, list[Any], list[Any]]:
        """The function that shows the code at the position, its inputs and its outputs."""
        outputs = [self.image, self.codes, self.code_about, self.code]
        if self.model.generator is not None:
            outputs += [self.attention, self.candidates]
        return self.show_code, [self.drawing, self.position, self.layer], outputs

    @property
    def _num_tokens(self) -> int:
        return self.model.grid_size[0] * self.model.grid_size[1]

    def _indices(self, drawing: Drawing) -> Tensor:
        return to_indices(drawing.tokens, self.model.grid_size)[0]  # (h w)

    def _overview(self, drawing: Drawing) -> list[Any]:
        """Returns the values of `overview` for a single image."""
        model, pixels = self.model, drawing.pixels[0]
        rows, columns = model.grid_size
        about = (
            f"{rows} × {columns} codes, with {len(drawing.tokens.unique())} different ones out of "
            f"{model.tokenizer.codebook_size}."
        )
        surprise = None
        if model.generator is not None:
            tokens, condition = drawing.tokens, drawing.condition
            surprise, bits = surprise_picture(model.generator, pixels, tokens, condition)
            about += (
                f" The transformer needs {bits.mean():.2f} bits per code, and {bits.max():.1f} "
                "bits for the most surprising one."
            )
        codes = codes_picture(model.tokenizer, self._indices(drawing))
        return [drawing, enlarge(pixels), enlarge(codes), surprise, about]

    def show_code(self, drawing: Drawing | None, position: int, layer: int) -> list[Any]:
        """Shows where a code occurs, what it decodes to, and what the transformer predicts."""
        drawing = _require(drawing)
        model, pixels = self.model, drawing.pixels[0]
        indices = self._indices(drawing)
        code = drawing.tokens[0, position]
        row, column = divmod(position, model.grid_size[1])
        number = int((indices == code).sum())
        about = (
            f"Position {position} (row {row}, column {column}) has **code {int(code)}**, which "
            f"occurs {number} time{'s' * (number > 1)} in this image (framed)."
        )
        if position == 0 and model.generator is not None:
            about += " Before it there is nothing in the image to attend to."
        codes = codes_picture(model.tokenizer, indices)
        alone = single_codes(model.tokenizer, code[None])[0]
        values: list[Any] = [
            mark_code(pixels, indices, position),
            mark_code(codes, indices, position),
            about,
            enlarge(alone, CODE_SIDE),
        ]
        generator = model.generator
        if generator is None:
            return values
        tokens, condition = drawing.tokens, drawing.condition
        all_layers = range(len(generator.transformer.blocks))
        layers = all_layers if layer == ALL_LAYERS else [layer - 1]
        values.append(attention_picture(generator, pixels, tokens, condition, position, layers))
        best_codes, probabilities = candidates(
            generator, tokens, position, condition, NUM_CANDIDATES
        )
        pictures = single_codes(model.tokenizer, best_codes[0])
        numbers, shares = best_codes[0].tolist(), probabilities[0].tolist()
        gallery = [
            (enlarge(one, CODE_SIDE), f"{number}: {share:.1%}{' (now)' * (number == int(code))}")
            for one, number, share in zip(pictures, numbers, shares, strict=True)
        ]
        return [*values, gallery]

    def _clicked_position(self, event: gr.SelectData, drawing: Drawing | None) -> int:
        with errors_in_page():
            height, width = enlarge(_require(drawing).pixels[0]).shape[:2]
            return _clicked_cell(event, (width, height), *self.model.grid_size)


def _clicked_candidate(event: gr.SelectData, gallery: list[tuple[Any, str]]) -> int:
    return int(gallery[event.index][1].split(":")[0])


def _whole_number(label: str, info: str, value: int, maximum: int) -> gr.Number:
    number = gr.Number(value, label=label, info=info, precision=0, minimum=0, maximum=maximum)
    return in_range(number)


def _require(drawing: Drawing | None) -> Drawing:
    if drawing is None:
        raise UserError("there is no image to look into: upload a picture, or draw one.")
    return drawing


def _clicked_cell(event: gr.SelectData, size: tuple[int, int], rows: int, columns: int) -> int:
    """Returns the number of the clicked cell of a picture of this (width, height)."""
    x, y = event.index
    row, column = y * rows // size[1], x * columns // size[0]
    return int(min(row, rows - 1) * columns + min(column, columns - 1))
