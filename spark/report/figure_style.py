"""The style of all plots: each is drawn for a wide and for a narrow window, with few axis lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.display import name
from spark.report.svg import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE, _NARROW = 8.6, 3.4  # inches
ROW_HEIGHT: Final = 0.32
"""Inches for each bar of a plot with names beside it."""


class Plot(NamedTuple):
    """A plot and its caption."""

    title: str
    note: str
    wide: Markup
    narrow: Markup


def both_widths(
    key: str,
    title: str,
    note: str,
    label: str,
    height: float,
    fill: Callable[[Figure, bool], None],
) -> Plot:
    """Return a plot; ``fill`` draws it on a figure, which is narrow or not."""
    wide = draw(f"{key}-w", label, (_WIDE, height), lambda figure: fill(figure, False))
    narrow = draw(f"{key}-n", label, (_NARROW, height), lambda figure: fill(figure, True))
    return Plot(title, note, wide, narrow)


def calm_axes(pane: Axes, unit: str) -> None:
    """Start the axis at 0, shorten large numbers, and hide unnecessary lines."""
    pane.set_ylim(bottom=0)
    pane.set_ylabel(unit)
    pane.yaxis.set_major_formatter(lambda value, _: number_text(value))
    pane.grid(visible=True, axis="y", linewidth=0.7)
    pane.grid(visible=False, axis="x")
    pane.tick_params(length=0)
    pane.spines["left"].set_visible(False)


def add_legend(figure: Figure, pane: Axes, *, narrow: bool) -> None:
    """Add a legend above the plot."""
    figure.legend(
        *pane.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=3,
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.3,
        handletextpad=0.4,
        columnspacing=0.9,
        fontsize=8 if narrow else 9,
    )


def short_name(text: str, most: int) -> str:
    """Return a shortened name; the table has the full one."""
    return shortened(name(text, 4 * most), most)


def shortened(shown: str, most: int) -> str:
    """Return an escaped name, shortened."""
    return shown if len(shown) <= most else shown[: most - 1] + "\u2026"


def hide_frame(pane: Axes) -> None:
    """Hide the lines beside and below a plot."""
    for side in ("left", "bottom"):
        pane.spines[side].set_visible(False)


def number_text(value: float) -> str:
    """Return a number in at most three digits and a unit."""
    for one, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= one:
            return f"{value / one:.3g}{unit}"
    return f"{value:.3g}"
