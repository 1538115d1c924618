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
from taming.studio.controls import ConditionControls, SamplingControls
from taming.studio.drawing import Drawn, draw_rows, num_columns
from taming.studio.events import on_device, sentences
from taming.studio.maps import (
    attention_picture,
    codes_picture,
    enlarge,
    mark_code,
    single_codes,
    surprise_picture,
)
from taming.studio.models import StudioModel
from taming.studio.shown import show_picture, show_pictures
from taming.studio.uploads import upload_picture
from taming.transformer.orders import to_indices, to_tokens

__all__ = ["LookPage"]

NUM_CANDIDATES = 12
CODE_SIDE = 96  # pixels of a code shown alone, at least
ALL_LAYERS = 0


class LookPage:
    """The components of the page, made where it is constructed, and what they do."""

    def __init__(self, model: StudioModel) -> None:
        self.model = model
        self.looked = gr.State()
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                upload = upload_picture()
                conditions = None
                if model.generator is not None:
                    conditions = ConditionControls(model.generator, in_turn=False)
                look = gr.Button("Look into it", variant="primary")
                self.about = gr.Markdown()
            with gr.Column(scale=3, min_width=280), gr.Row():
                with gr.Column(min_width=240):
                    self.image = show_picture("Decoded: click on it", "decoded")
                with gr.Column(min_width=240):
                    self.codes = show_picture("Each code decoded alone: click on it", "codes")
                with gr.Column(min_width=240, visible=model.generator is not None):
                    self.surprise = show_picture("Surprise: bits of each code", "surprise")
        self.overview: list[Any] = [self.looked, self.image, self.codes, self.surprise, self.about]
        self._add_code()
        inputs = [upload, *(conditions.components if conditions else [])]

        def look_into(picture: Any, *values: Any) -> list[Any]:
            indices = model.tokenizer.encode(model.images(picture))
            pixels = to_uint8(model.tokenizer.decode(indices), model.palette)
            condition = None
            if conditions and model.generator:
                condition = conditions.read(model.generator, 1, *values)
            return self._overview(Drawn(to_tokens(indices).cpu(), pixels, condition))

        looked = on_device(look.click, look_into, inputs, self.overview, name="look")
        on_device(looked.success, *self.showing)

    def _add_code(self) -> None:
        """Adds what is shown of a single token."""
        generator = self.model.generator
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                self.position = gr.Number(
                    0,
                    label="position",
                    info="of the code, counted from 0, row after row; or click on a picture",
                    precision=0,
                    minimum=0,
                    maximum=self._num_tokens - 1,
                )
                show = gr.Button("Show this code")
                self.code_about = gr.Markdown()
                self.code = show_picture("The code alone", "code", height=180)
            with gr.Column(scale=3, min_width=280, visible=generator is not None):
                layers = 1 if generator is None else len(generator.transformer.blocks)
                choices = [("all layers", ALL_LAYERS)]
                choices += [(f"layer {layer}", layer) for layer in range(1, layers + 1)]
                self.layer = gr.Dropdown(choices, value=ALL_LAYERS, label="attention of")
                self.attention = show_picture(
                    "What the prediction of this code attends to, a row for each layer: layer.head "
                    "and the share that goes to the image",
                    "attention",
                )
                self.candidates = show_pictures(
                    "Candidates for this place with their probabilities: click to choose one",
                    "candidates",
                    6,
                    allow_preview=False,
                )
                if generator is not None:
                    self._add_change(generator)
        on_device(show.click, *self.showing, name="show_code")
        for picture in (self.image, self.codes, self.surprise):
            clicked = picture.select(
                self._position_of, self.looked, self.position, api_visibility="private"
            )
            on_device(clicked.success, *self.showing)
        on_device(self.layer.input, *self.showing)

    def _add_change(self, generator: ImageGenerator) -> None:
        self.new_code = gr.Number(
            0,
            label="code to put there",
            precision=0,
            minimum=0,
            maximum=self.model.tokenizer.codebook_size - 1,
        )
        with gr.Accordion("how the rest is drawn", open=False):
            self.sampling = SamplingControls(generator, num_images=None)
        with gr.Row():
            change = gr.Button("Change it and draw the rest anew", variant="primary")
            cancel = gr.Button("Cancel")
        self.candidates.select(
            self._candidate, self.candidates, self.new_code, api_visibility="private"
        )
        inputs = [self.looked, self.position, self.new_code, *self.sampling.components]
        on_device(change.click, self.change, inputs, self.overview, name="change", cancel=cancel)

    def listen_to(self, grid: gr.Image, drawn: gr.State, tabs: gr.Tabs, tab: str) -> None:
        """Lets a click on an image of a grid open it here."""

        def open_image(event: gr.SelectData, picture: Image.Image, found: Drawn | None) -> Any:
            if found is None or found.tokens.shape[1] < self._num_tokens:
                raise UserError("this image is not finished yet: let it be drawn first.")
            count = len(found.tokens)
            across = num_columns(count)
            number = _clicked(event, picture.size, -(-count // across), across)
            if number >= count:
                raise UserError("there is no image at this place: click on one.")
            return [gr.Tabs(selected=tab), *self._overview(found.one(number))]

        on_device(grid.select, open_image, [grid, drawn], [tabs, *self.overview], name="open_image")

    @property
    def showing(self) -> tuple[Any, list[Any], list[Any]]:
        """What shows the code at the position: function, inputs and outputs."""
        outputs = [self.image, self.codes, self.code_about, self.code]
        if self.model.generator is not None:
            outputs += [self.attention, self.candidates]
        return self.show_code, [self.looked, self.position, self.layer], outputs

    @property
    def _num_tokens(self) -> int:
        return self.model.grid_size[0] * self.model.grid_size[1]

    def _indices(self, looked: Drawn) -> Tensor:
        return to_indices(looked.tokens, self.model.grid_size)[0]  # (h w)

    def _overview(self, looked: Drawn) -> list[Any]:
        """Returns the values of `overview` for a single image."""
        model, pixels = self.model, looked.pixels[0]
        rows, columns = model.grid_size
        about = (
            f"{rows} × {columns} codes, {len(looked.tokens.unique())} different ones of "
            f"{model.tokenizer.codebook_size}."
        )
        surprise = None
        if model.generator is not None:
            surprise, bits = surprise_picture(
                model.generator, pixels, looked.tokens, looked.condition
            )
            about += (
                f" The transformer needs {bits.mean():.2f} bits for each; brightest in the picture "
                f"of surprise is {bits.max():.1f}."
            )
        codes = codes_picture(model.tokenizer, self._indices(looked))
        return [looked, enlarge(pixels), enlarge(codes), surprise, about]

    def show_code(self, looked: Drawn | None, position: int | None, layer: int) -> list[Any]:
        """Shows where a code occurs, what it decodes to, and what the transformer makes of it."""
        looked, position = self._chosen(looked, position)
        model, pixels = self.model, looked.pixels[0]
        indices = self._indices(looked)
        code = looked.tokens[0, position]
        row, column = divmod(position, model.grid_size[1])
        number = int((indices == code).sum())
        about = (
            f"Position {position} (row {row}, column {column}) has **code {int(code)}**, which "
            f"occurs {number} time{'s' * (number > 1)} in this image (framed)."
        )
        codes = codes_picture(model.tokenizer, indices)
        alone = single_codes(model.tokenizer, code[None])[0]
        shown: list[Any] = [
            mark_code(pixels, indices, position),
            mark_code(codes, indices, position),
            about,
            enlarge(alone, CODE_SIDE),
        ]
        generator = model.generator
        if generator is None:
            return shown
        layers = range(len(generator.transformer.blocks))
        shown.append(
            attention_picture(
                generator,
                pixels,
                looked.tokens,
                looked.condition,
                position,
                layers if layer == ALL_LAYERS else [layer - 1],
            )
        )
        found, probabilities = candidates(
            generator, looked.tokens, position, looked.condition, NUM_CANDIDATES
        )
        pictures = single_codes(model.tokenizer, found[0])
        gallery = [
            (enlarge(one, CODE_SIDE), f"{number}: {share:.1%}{' (now)' * (number == int(code))}")
            for one, number, share in zip(
                pictures, found[0].tolist(), probabilities[0].tolist(), strict=True
            )
        ]
        return [*shown, gallery]

    def change(
        self, looked: Drawn | None, position: int | None, code: int | None, *values: Any
    ) -> Iterator[list[Any]]:
        """Puts another code at a position and draws what follows anew."""
        looked, position = self._chosen(looked, position)
        if code is None:
            raise UserError("give a code to put there, or click on a candidate.")
        generator = self.model.generator
        assert generator is not None
        _, options = self.sampling.read(*values)
        tokens = torch.cat([looked.tokens[:, :position], torch.tensor([[code]])], 1)
        step = looked
        for step in draw_rows(generator, 1, looked.condition, options, tokens):
            yield [gr.skip(), enlarge(step.pixels[0]), gr.skip(), gr.skip(), "drawing …"]
        yield self._overview(step)

    def _chosen(self, looked: Drawn | None, position: int | None) -> tuple[Drawn, int]:
        if looked is None:
            raise UserError("there is no image to look into yet: upload a picture, or draw one.")
        if position is None:
            raise UserError("give the position of a code, or click on one.")
        return looked, position

    def _position_of(self, event: gr.SelectData, looked: Drawn | None) -> int:
        """Returns the position of the code that was clicked on."""
        with sentences():
            looked, _ = self._chosen(looked, 0)
            height, width = enlarge(looked.pixels[0]).shape[:2]
            return _clicked(event, (width, height), *self.model.grid_size)

    @staticmethod
    def _candidate(event: gr.SelectData, gallery: list[tuple[Any, str]]) -> int:
        """Returns the code of the candidate that was clicked on."""
        return int(gallery[event.index][1].split(":")[0])


def _clicked(event: gr.SelectData, size: tuple[int, int], rows: int, columns: int) -> int:
    """Returns the number of the cell that was clicked on, of a picture of this (width, height)."""
    x, y = event.index
    row, column = y * rows // size[1], x * columns // size[0]
    return int(min(row, rows - 1) * columns + min(column, columns - 1))
