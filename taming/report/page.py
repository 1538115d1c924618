"""The parts that a report is made of, and the page that Jinja2 makes of them."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from taming.report.records import RunRecord

__all__ = [
    "Chart",
    "Finding",
    "Group",
    "Matrix",
    "Part",
    "Picture",
    "Pictures",
    "Section",
    "Table",
    "Text",
    "render_page",
]

MAX_SIZE = 15_000_000  # bytes of the page
SIDES = (256, 192, 128, 96, 64, 32)  # of pictures at most, in pixels: the first that fits the size
EXACT_SIDE = 64  # smaller pictures are saved without losses: in grids of codes a pixel is a code
MIN_CELL = 17  # pixels that a cell of a grid keeps: a code's picture, and the gap beside it


@dataclass(frozen=True)
class Picture:
    """A picture inside the page.

    Attributes:
        image: at most as large as the page shows it.
        title: what the pointer shows over it.
        cells: what the pointer shows over each cell of a picture that is a grid, row by row.
        num_columns: cells in a row.
    """

    image: Image.Image
    title: str = ""
    cells: Sequence[str] = ()
    num_columns: int = 0

    @classmethod
    def of(
        cls, pixels: np.ndarray, title: str = "", cells: Sequence[str] = (), num_columns: int = 0
    ) -> "Picture":
        """Makes a picture of uint8 `(H W 3)`, no larger than the page shows it."""
        image, side = Image.fromarray(pixels), max(SIDES[0], MIN_CELL * num_columns)
        image.thumbnail((side, side))
        return cls(image, title, cells, num_columns)

    def address(self, side: int) -> str:
        """Returns it as a `data:` address, at most `side` pixels large unless its cells are many.

        Small ones are exact, others compressed with losses that hardly anybody sees.
        """
        image, file = self.image.copy(), io.BytesIO()
        most = max(side, MIN_CELL * self.num_columns)
        image.thumbnail((most, most))
        image.save(file, "webp", lossless=max(image.size) <= EXACT_SIDE, quality=90)
        return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Group:
    """Pictures that belong together, and a line about them."""

    caption: str
    pictures: Sequence[Picture]

    @classmethod
    def of(cls, caption: str, *pixels: np.ndarray) -> "Group":
        """Makes a group of pictures, each uint8 `(H W 3)`."""
        return cls(caption, [Picture.of(one) for one in pixels])


@dataclass(frozen=True)
class Pictures:
    """Groups of pictures, as many in a row as there is room for; `legend` says what each shows."""

    groups: Sequence[Group]
    legend: str = ""
    side: int = 96  # pixels that a picture is wide on the screen, where there is room


@dataclass(frozen=True)
class Matrix:
    """Pictures in rows and columns with headings; it unfolds unless it is `open`."""

    caption: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Picture]]
    open: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure of Plotly, as JSON."""

    title: str
    figure: str


@dataclass(frozen=True)
class Table:
    """A table; cells are text already. `side` is a second one shown beside it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    side: "Table | None" = None


@dataclass(frozen=True)
class Text:
    """A paragraph; with a `title` preformatted text that unfolds."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Finding:
    """A sentence about the health of a run; `level` is warning, note or good."""

    text: str
    level: str = "warning"


Part = Pictures | Matrix | Chart | Table | Text | Finding


@dataclass
class Section:
    """A section of the page.

    Attributes:
        title: heading.
        explanation: how to read what follows.
        parts: what all runs share, such as curves.
        by_run: parts of each run, side by side, by its name.
    """

    title: str
    explanation: str = ""
    parts: list[Part] = field(default_factory=list)
    by_run: dict[str, list[Part]] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """The name of its place in the page."""
        return self.title.lower().replace(" ", "-")


def render_page(subtitle: str, runs: Sequence[RunRecord], sections: Sequence[Section]) -> bytes:
    """Returns the page, with Plotly's program once inside; its pictures as large as it allows."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    templates = Environment(
        loader=PackageLoader("taming.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["kind"] = lambda part: type(part).__name__
    # in a script element, where HTML's own escapes do not count
    templates.filters["script"] = lambda text: Markup(text.replace("</", "<\\/"))
    template = templates.get_template("report.html")
    for side in SIDES:
        page = template.render(
            title=" · ".join(run.name for run in runs),
            subtitle=subtitle,
            runs=[run.name for run in runs],
            sections=[section for section in sections if section.parts or section.by_run],
            plotly=get_plotlyjs(),
            largest=side,
        ).encode()
        if len(page) <= MAX_SIZE:
            break
    return page
