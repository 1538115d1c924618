"""The parts that a report is made of, and the page that Jinja2 makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

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


@dataclass(frozen=True)
class Picture:
    """A picture inside the page.

    Attributes:
        source: `data:` address, see `taming.report.images`.
        title: what the pointer shows over it.
        cells: what the pointer shows over each cell of a picture that is a grid, row by row.
        num_columns: cells in a row.
    """

    source: str
    title: str = ""
    cells: Sequence[str] = ()
    num_columns: int = 0


@dataclass(frozen=True)
class Group:
    """Pictures that belong together, and a line about them."""

    caption: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Pictures:
    """Groups of pictures, as many in a row as there is room for; `legend` says what each shows."""

    kind: ClassVar[str] = "pictures"
    groups: Sequence[Group]
    legend: str = ""
    side: int = 96  # pixels that a picture is wide on the screen, where there is room


@dataclass(frozen=True)
class Matrix:
    """Pictures in rows and columns with headings; it unfolds unless it is `open`."""

    kind: ClassVar[str] = "matrix"
    caption: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Picture]]
    open: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure of Plotly, as JSON."""

    kind: ClassVar[str] = "chart"
    title: str
    figure: str


@dataclass(frozen=True)
class Table:
    """A table; cells are text already. `side` is a second one shown beside it."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    side: "Table | None" = None


@dataclass(frozen=True)
class Text:
    """A paragraph; with a `title` preformatted text that unfolds."""

    kind: ClassVar[str] = "text"
    text: str
    title: str = ""


@dataclass(frozen=True)
class Finding:
    """A sentence about the health of a run; `level` is warning, note or good."""

    kind: ClassVar[str] = "finding"
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


def render_page(subtitle: str, runs: Sequence[RunRecord], sections: Sequence[Section]) -> str:
    """Returns the page, with Plotly's program once inside."""
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
    # in a script element, where HTML's own escapes do not count
    templates.filters["script"] = lambda text: Markup(text.replace("</", "<\\/"))
    return templates.get_template("report.html").render(
        title=" · ".join(run.name for run in runs),
        subtitle=subtitle,
        runs=[run.name for run in runs],
        sections=[section for section in sections if section.parts or section.by_run],
        plotly=get_plotlyjs(),
    )
