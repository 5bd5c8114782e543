"""Charts as SVG within an HTML page, drawn by matplotlib: the page's colours, unique ids.

A chart is drawn in placeholder colours for those of the page, which differ in the dark. No
interactive part of matplotlib is used, and the output contains only text and shapes: the same
figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from eventstore.display import name as shown_name
from spark.runtime.errors import NoSpark, install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final[Mapping[str, str]] = {
    "text": "#17202c",
    "muted": "#566274",
    "line": "#d8dee7",
    "a": "#0b5cad",
    "b": "#c2410c",
    "c": "#17714a",
    "d": "#b3261e",
}
"""Names of the page's colours -> their placeholders in matplotlib."""

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may contain dollars
    "axes.unicode_minus": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["muted"],
    "xtick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.color": COLOURS["line"],
    "ytick.labelcolor": COLOURS["muted"],
    "text.color": COLOURS["text"],
    "grid.color": COLOURS["line"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["text"],
}
_WIDTH: Final = 8.6  # inches
ROW_HEIGHT: Final = 0.32
"""Inches for each bar of a chart with names beside it."""
_NAME: Final = 32
_DAY_MS: Final = 86_400_000
_ID = re.compile(r'\bid="([^"]*)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]*)')
_FAMILY = re.compile(r"font(-family)?: ([0-9.]+px )?[^;\"]*'?sans-serif'?[^;\"]*")


class NoPlots(NoSpark):
    """Matplotlib, which draws the plots of the page, is not installed."""


def require_matplotlib() -> None:
    """Raise NoPlots unless plots can be drawn."""
    try:
        import matplotlib.backends.backend_svg  # noqa: F401
    except ImportError:
        raise NoPlots(f"the HTML page needs matplotlib: {install_command()}") from None


class Plot(NamedTuple):
    """A chart and its caption."""

    title: str
    note: str
    drawing: Markup


class Line(NamedTuple):
    """A line over time."""

    label: str
    times_ms: Sequence[float]
    values: Sequence[float]
    colour: str
    """One of :data:`COLOURS`."""
    dash: str = "-"


def draw(
    name: str, title: str, note: str, label: str, height: float, fill: Callable[[Figure], None]
) -> Plot:
    """Return the chart that ``fill`` makes on a figure of a ``height`` in inches.

    ``name`` makes its ids unique in the page, ``label`` describes it for screen readers.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        # Letters missing in its font are drawn by the browser, which has them.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        fill(figure)
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return Plot(title, note, _in_page(name, label, out.getvalue()))


def axes(figure: Figure, *, grid: str = "y") -> Axes:
    """Return axes that fill a figure, with grid lines across ``grid``."""
    pane = figure.subplots()
    pane.grid(visible=False)
    pane.grid(visible=True, axis="y" if grid == "y" else "x", linewidth=0.7)
    pane.tick_params(length=0)
    return pane


def time_chart(
    key: str,
    caption: tuple[str, str, str],
    lines: Sequence[Line],
    unit: str,
    span_ms: tuple[int, int],
    *,
    dropped: tuple[Sequence[float], float] | None = None,
    text: Callable[[float], str] | None = None,
) -> Plot:
    """Return lines over a span of time; ``caption`` is title, note and label.

    ``dropped`` are the heights of bars below them at the times of the first line, and their width
    in milliseconds. ``text`` formats the values of the axis.
    """

    def fill(figure: Figure) -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        heights = (4, 1.3) if dropped else (1,)
        panes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        upper, lowest = panes[0][0], panes[-1][0]
        for line in lines:
            marker = "o" if len(line.times_ms) == 1 else ""
            colour = COLOURS[line.colour]
            style = {"color": colour, "lw": 1.5, "ls": line.dash, "marker": marker}
            upper.plot(_days(line.times_ms), line.values, label=line.label, **style)
        calm_axes(upper, unit)
        if text is not None:
            upper.yaxis.set_major_formatter(lambda value, _: text(value))
        add_legend(figure, upper)
        if dropped:
            values, width = dropped
            lowest.bar(_days(lines[0].times_ms), values, width=width / _DAY_MS, color=COLOURS["d"])
            calm_axes(lowest, "dropped/s")
        locator = AutoDateLocator(maxticks=9)  # type: ignore[no-untyped-call]
        lowest.xaxis.set_major_locator(locator)
        shown = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        lowest.xaxis.set_major_formatter(shown)
        lowest.set_xlim(*_days(span_ms))

    return draw(key, *caption, 3.0, fill)


def _days(times_ms: Sequence[float]) -> list[float]:
    """Return Unix times as matplotlib has them."""
    return [time_ms / _DAY_MS for time_ms in times_ms]


def bar_chart(
    key: str,
    caption: tuple[str, str, str],
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[int]]],
    text: Callable[[int], str],
) -> Plot:
    """Return a bar for each name, the first one on top; ``parts`` are label, colour and values.

    ``text`` formats the sum of a bar.
    """

    def fill(figure: Figure) -> None:
        pane = axes(figure, grid="x")
        base = [0] * len(names)
        for label, colour, values in parts:
            bars = pane.barh(
                range(len(names)), values, height=0.6, left=base, color=COLOURS[colour], label=label
            )
            base = [sum(pair) for pair in zip(base, values, strict=True)]
        pane.bar_label(bars, [text(value) for value in base], padding=4)
        pane.margins(x=0.1)
        pane.set_xticks([])
        pane.grid(visible=False)
        name_rows(pane, names)
        if len(parts) > 1:
            add_legend(figure, pane)

    return draw(key, *caption, 0.5 + ROW_HEIGHT * len(names), fill)


def name_rows(pane: Axes, names: Sequence[str]) -> None:
    """Write escaped names, shortened, beside the rows of a chart; the table has the full ones."""
    shown = [text if len(text) <= _NAME else text[: _NAME - 1] + "\u2026" for text in names]
    pane.set_yticks(range(len(names)), shown, color=COLOURS["text"])
    pane.invert_yaxis()
    for side in ("left", "bottom"):
        pane.spines[side].set_visible(False)


def short_name(text: str) -> str:
    """Return the beginning of a name for a chart, escaped."""
    return shown_name(text, 4 * _NAME)


def calm_axes(pane: Axes, unit: str) -> None:
    """Start the axis at 0, shorten large numbers, and hide unnecessary lines."""
    pane.set_ylim(bottom=0)
    pane.set_ylabel(unit)
    pane.yaxis.set_major_formatter(lambda value, _: number_text(value))
    pane.grid(visible=True, axis="y", linewidth=0.7)
    pane.grid(visible=False, axis="x")
    pane.tick_params(length=0)
    pane.spines["left"].set_visible(False)


def add_legend(figure: Figure, pane: Axes) -> None:
    """Add a legend above the chart."""
    figure.legend(
        *pane.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=4,
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.3,
        handletextpad=0.4,
        columnspacing=0.9,
    )


def number_text(value: float) -> str:
    """Return a number in at most three digits and a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _in_page(name: str, label: str, drawn: str) -> Markup:
    """Return the drawing as a part of a page: without prologue and metadata, in its colours."""
    body = drawn[drawn.index("<svg") :].strip()
    head, _, content = body.partition(">")
    box = "".join(re.findall(r'viewBox="[^"]*"', head))
    content = re.sub(r"\s*<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = _ID.sub(rf'id="{name}-\1"', content)
    content = _REFERENCE.sub(rf"\g<1>{name}-\2", content)
    content = _FAMILY.sub(lambda match: f"font{match[1] or ''}: {match[2] or ''}inherit", content)
    for ours, theirs in COLOURS.items():
        content = content.replace(theirs, f"var(--{ours})")
    # matplotlib has escaped its content.
    start = Markup('<svg role="img" aria-label="{}" {}>').format(label, Markup(box))  # noqa: S704
    return start + Markup(content)  # noqa: S704
