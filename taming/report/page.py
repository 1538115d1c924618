"""The parts of a report, and the HTML page that Jinja2 renders from them."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

__all__ = ["Chart", "Finding", "Group", "Matrix", "Part", "Picture", "Pictures", "Section", "Table",
    "Text", "render_page"]  # fmt: skip

MAX_SIZE = 15_000_000  # bytes of the page
SIDES = (256, 192, 128, 96, 64, 32)  # largest side of pictures; the first that fits MAX_SIZE
LOSSLESS_SIDE = 64  # smaller pictures are lossless because a pixel may be a code
MIN_CELL = 17  # pixels per cell of a grid: a code's picture of 16 pixels and a gap


@dataclass(frozen=True)
class Picture:
    """A picture embedded in the page.

    Attributes:
        image: no larger than the page shows it.
        title: tooltip of the picture.
        cells: tooltips of the cells of a grid, row by row.
        num_columns: number of cells per row.
    """

    image: Image.Image
    title: str = ""
    cells: Sequence[str] = ()
    num_columns: int = 0

    @classmethod
    def of(
        cls, pixels: np.ndarray, title: str = "", cells: Sequence[str] = (), num_columns: int = 0
    ) -> "Picture":
        """Builds a picture from uint8 `(H W 3)`."""
        image, side = Image.fromarray(pixels), max(SIDES[0], MIN_CELL * num_columns)
        image.thumbnail((side, side))
        return cls(image, title, cells, num_columns)

    def address(self, side: int) -> str:
        """Returns a `data:` address of the picture with at most `side` pixels per side."""
        image, file = self.image.copy(), io.BytesIO()
        limit = max(side, MIN_CELL * self.num_columns)
        image.thumbnail((limit, limit))
        image.save(file, "webp", lossless=max(image.size) <= LOSSLESS_SIDE, quality=90)
        return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Group:
    """Pictures that belong together, with a caption."""

    caption: str
    pictures: Sequence[Picture]

    @classmethod
    def of(cls, caption: str, *pixels: np.ndarray) -> "Group":
        """Builds a group from pictures as uint8 `(H W 3)`."""
        return cls(caption, [Picture.of(picture) for picture in pixels])


@dataclass(frozen=True)
class Pictures:
    """Groups of pictures in flowing rows; `legend` explains the pictures of a group."""

    groups: Sequence[Group]
    legend: str = ""
    side: int = 96  # width of a picture on the screen, in pixels


@dataclass(frozen=True)
class Matrix:
    """Pictures in named rows and columns, collapsed unless `open`."""

    caption: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Picture]]
    open: bool = False


@dataclass(frozen=True)
class Chart:
    """A Plotly figure, as JSON."""

    title: str
    figure: str


@dataclass(frozen=True)
class Table:
    """A table of text cells, with an optional second table next to it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    side: "Table | None" = None


@dataclass(frozen=True)
class Text:
    """A paragraph; with a `title`, collapsed preformatted text."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Finding:
    """A sentence about the health of a run. `level` is `"warning"`, `"note"` or `"good"`."""

    text: str
    level: str = "warning"


Part = Pictures | Matrix | Chart | Table | Text | Finding


@dataclass
class Section:
    """A section of the page.

    Attributes:
        title: heading.
        explanation: how to read the section.
        hint: what the pointer does, for the screen only.
        parts: parts about all runs.
        by_run: parts about one run, by its name.
    """

    title: str
    explanation: str = ""
    hint: str = ""
    parts: list[Part] = field(default_factory=list)
    by_run: dict[str, list[Part]] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """The section's `id` in the page."""
        return self.title.lower().replace(" ", "-")


def render_page(subtitle: str, runs: Sequence[str], sections: Sequence[Section]) -> bytes:
    """Returns a self-contained page with pictures as large as `MAX_SIZE` allows.

    The title has the names of the `runs`. The page skips empty sections.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("taming.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    # HTML's own escapes do not apply inside a script element
    environment.filters["script"] = lambda text: Markup(text.replace("</", "<\\/"))
    template = environment.get_template("report.html")
    for side in SIDES:
        page = template.render(
            title=" · ".join(runs),
            subtitle=subtitle,
            runs=runs,
            sections=[section for section in sections if section.parts or section.by_run],
            plotly=get_plotlyjs(),
            max_side=side,
        ).encode()
        if len(page) <= MAX_SIZE:
            break
    return page
