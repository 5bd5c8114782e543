"""Curves of several lines, side by side, for large terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cli.common import text
from cli.top import number_format
from cli.top.rate_history import History, area
from cli.top.styled_text import Line, cells

if TYPE_CHECKING:
    from collections.abc import Callable

_GAP = 2
_NARROWEST = 36


class _CurveText(NamedTuple):
    name: str
    title: str
    show: Callable[[float | None], str]


_CURVES = (
    _CurveText("in", "messages in/s", number_format.count),
    _CurveText("out", "messages out/s", number_format.count),
    _CurveText("gate", "gate p99", number_format.figure_duration),
    _CurveText("waiting", "messages queued", number_format.count),
)


def charts(history: History, width: int, height: int, interval: float) -> list[Line]:
    """Return the curves that fit into ``width`` columns, each with its title in the first line.

    ``interval`` is the time between two values in seconds.
    """
    number = min(len(_CURVES), max(1, (width + _GAP) // (_NARROWEST + _GAP)))
    each = (width + _GAP) // number - _GAP
    drawn = [_chart(history, curve, each, height, interval) for curve in _CURVES[:number]]
    return [cells(*((each + _GAP, line) for line in lines)) for lines in zip(*drawn, strict=True)]


def _chart(
    history: History, curve: _CurveText, width: int, height: int, interval: float
) -> list[Line]:
    values = history.curve(curve.name)[-width:]
    most = max((value for value in values if value is not None), default=None)
    shown = text.duration(round(len(values) * interval * 1000))
    title: Line = [
        (curve.title, "label"),
        (f"  most {curve.show(most)}", "plain"),
        (f" in {shown}", "label"),
    ]
    lines: list[Line] = [[(line, "curve")] for line in area(values, width, height - 1)]
    return [title, *lines]
