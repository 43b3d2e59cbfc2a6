"""The style of all figures: one column wide, legible in print, safe for the colour-blind.

What differs in kind (recipes, laws) has a colour, a marker and a line style of its own; what is
ordered (sizes, budgets) goes from dark to light. Nothing is told by colour alone.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 3.5, 2.7  # inches: one column
TITLE_CHARACTERS = 52
REMARK_CHARACTERS = 56  # of a remark inside the axes, in a figure of one column of panels
DPI = 220  # of the PNG
KINDS = (  # Okabe and Ito's colours, in an order that also differs in lightness
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", (0, (3, 1, 1, 1, 1, 1))),
    ("#E69F00", "v", (0, (5, 1))),
    ("#56B4E9", "P", ":"),
    ("#000000", "X", (0, (1, 1))),
)
MARKERS = "osD^vPX*"
SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a recipe's name may have any characters
    "svg.fonttype": "none",  # text stays text: searchable, and read aloud
    "svg.hashsalt": "dcray",  # the same figure is the same file
}


@dataclass(frozen=True)
class Picture:
    """A figure with its title, and its text alternative: what a reader would see in the figure."""

    name: str
    title: str
    alt: str
    figure: Any


class AbsentError(Exception):
    """The study does not hold what a figure shows; the message says what is missing."""


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Apply our settings to figures made in this block; the global settings stay as they were."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield


def sheet(rows: int = 1, columns: int = 1, *, height: float = HEIGHT, **options: Any) -> Any:
    """Create (figure, axes) one column wide, `height` inches high, without pyplot global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def kind(index: int) -> dict[str, Any]:
    """Return the colour, marker and line style of the index-th recipe or law."""
    color, marker, line = KINDS[index % len(KINDS)]
    return {"color": color, "marker": marker, "linestyle": line}


def ordered(index: int, count: int) -> dict[str, Any]:
    """Return the colour and marker of the index-th of `count` ordered values, dark to light."""
    import matplotlib as mpl

    share = 0.0 if count < 2 else 0.8 * index / (count - 1)
    return {"color": mpl.colormaps["viridis"](share), "marker": MARKERS[index % len(MARKERS)]}


def count_axis(axis: Any, values: Any, *, most: int = 6) -> None:
    """Make an axis logarithmic; its ticks are at most `most` values of the grid (single units)."""
    axis.axes.set_xscale("log") if axis.axis_name == "x" else axis.axes.set_yscale("log")
    kept = _apart(sorted(set(map(float, values))), most)
    axis.set_major_locator(_fixed(kept))
    axis.set_major_formatter(_named([short(value) for value in kept]))
    axis.set_minor_locator(_fixed([]))


def _apart(values: Sequence[float], most: int) -> list[float]:
    """Choose at most `most` values, neighbours at least a tenth of the whole (log) range apart."""
    kept: list[float] = []
    for value in values:
        if not kept or value / kept[-1] > (values[-1] / values[0]) ** 0.1:
            kept.append(value)
    return kept[:: -(-len(kept) // most)]


def _fixed(values: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(list(values))


def _named(labels: Sequence[str]) -> Any:
    from matplotlib.ticker import FixedFormatter

    return FixedFormatter(list(labels))


def short(count: float) -> str:
    """Format a count for people: 1439273984 as "1.44B", 64000 as "64k"."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor * 0.9995:
            return f"{count / factor:.3g}{unit}"
    return f"{count:.3g}"


def marks(values: Any) -> list[Any]:
    """Create legend handles of ordered values (in single units)."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="", label=short(value), **ordered(i, len(values)))
        for i, value in enumerate(values)
    ]


def below(figure: Any, handles: Sequence[Any] | None = None, *, title: str = "") -> None:
    """Draw the legend under the axes, in as many columns, at most 4, as the figure is wide for."""
    given = {} if handles is None else {"handles": list(handles)}
    for columns in (4, 3, 2, 1):
        legend = figure.legend(
            **given, loc="outside lower center", ncols=columns, title=title or None,
            title_fontsize=7, columnspacing=1.2,
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def head(figure: Any, title: str) -> None:
    """Draw the title over the whole figure, in as many lines as it takes."""
    figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS), fontsize=9)


def within(axes: Any, core: Sequence[float], others: Sequence[tuple[str, float]] = ()) -> None:
    """Set a y range that holds `core`, and of `others` (name, value) those not far above it.

    Far above is more than the whole range of `core` higher, so that one bad recipe hides no
    difference; such values are named, each name with its highest, in room of their own.
    """
    low, high = min(core), max(core)
    reach = high + max(high - low, 0.02 * abs(high))
    near = [value for _, value in others if value <= reach]
    far = {name: max(v for other, v in others if other == name and v > reach)
           for name, value in others if value > reach}  # fmt: skip
    bottom, top = min([low, *near]), max([high, *near])
    room = top - bottom + 1e-3
    named = ", ".join(f"{name} {value:.2f}" for name, value in far.items())
    columns = axes.get_subplotspec().get_gridspec().ncols
    remark = textwrap.wrap(f"far above: {named}", REMARK_CHARACTERS // columns) if far else []
    axes.set_ylim(bottom - 0.08 * room, top + (0.08 + 0.12 * len(remark)) * room)
    if remark:
        axes.annotate("\n".join(remark), (0.98, 0.97), xycoords="axes fraction",
                      ha="right", va="top", fontsize=6.5,  # lines that leave the range go behind
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def settle(figure: Any) -> None:
    """Lay the figure out once and for all: the layout engine moves parts a little at each draw."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def save(picture: Picture, folder: Path) -> None:
    """Save NAME.png and NAME.svg in the folder, with the title and the text alternative inside."""
    with drawing():
        settle(picture.figure)
        picture.figure.savefig(
            folder / f"{picture.name}.svg",
            metadata={"Title": picture.title, "Description": picture.alt, "Date": None},
        )
        picture.figure.savefig(
            folder / f"{picture.name}.png",
            dpi=DPI,
            metadata={"Title": picture.title, "Description": picture.alt},
        )
