"""Figures of matplotlib as SVG within an HTML page: the page's colours, unique ids.

A figure is drawn in placeholder colours for those of the page, which differ in the dark. No
interactive part of matplotlib is used, and the output contains only text and shapes: the same
figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from spark.runtime.errors import NoSpark, install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def draw(
    name: str, label: str, inches: tuple[float, float], fill: Callable[[Figure], None]
) -> Markup:
    """Return the drawing that ``fill`` makes on a figure, as an ``svg`` element.

    ``name`` makes its ids unique in the page, ``label`` describes it for screen readers.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        # Letters missing in its font are drawn by the browser, which has them.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasSVG(figure)
        fill(figure)
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _in_page(name, label, out.getvalue())


def axes(figure: Figure, *, grid: str = "y") -> Axes:
    """Return axes that fill a figure, with grid lines across ``grid``."""
    found = figure.subplots()
    found.grid(visible=False)
    found.grid(visible=True, axis="y" if grid == "y" else "x", linewidth=0.7)
    found.tick_params(length=0)
    return found


def _in_page(name: str, label: str, drawn: str) -> Markup:
    """Return the drawing as a part of a page: without prologue and metadata, in its colours."""
    body = drawn[drawn.index("<svg") :].strip()
    head, _, rest = body.partition(">")
    box = "".join(re.findall(r'viewBox="[^"]*"', head))
    rest = re.sub(r"\s*<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = _ID.sub(rf'id="{name}-\1"', rest)
    rest = _REFERENCE.sub(rf"\g<1>{name}-\2", rest)
    rest = _FAMILY.sub(lambda found: f"font{found[1] or ''}: {found[2] or ''}inherit", rest)
    for ours, theirs in COLOURS.items():
        rest = rest.replace(theirs, f"var(--{ours})")
    # matplotlib has escaped its content.
    start = Markup('<svg role="img" aria-label="{}" {}>').format(label, Markup(box))  # noqa: S704
    return start + Markup(rest)  # noqa: S704
