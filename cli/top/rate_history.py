"""The history of the figures, one value per poll, for the curves."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.top.rates import Percentiles, Rates

KEPT = 600
"""Number of polls kept: 20 minutes at 2 seconds each."""

_LEVELS = " ▁▂▃▄▅▆▇█"
_STEPS = len(_LEVELS) - 1
_UNKNOWN = -1
_GAP = "·"


class History:
    """Curves by name; a missing value is None."""

    NAMES = ("in", "out", "gate", "loop", "broker", "waiting")

    def __init__(self, kept: int = KEPT) -> None:
        self._curves: dict[str, deque[float | None]] = {
            name: deque(maxlen=kept) for name in self.NAMES
        }

    def add(self, status: Mapping[str, Any], rates: Rates | None) -> None:
        """Add a poll; ``rates`` are those since the previous one."""
        values: dict[str, float | None] = {
            "waiting": waiting(status),
        }
        if rates is not None:
            values |= {
                "in": sum(rates.messages_in),
                "out": sum(rates.messages_out),
                "gate": _p99(rates.commit),
                "loop": _p99(rates.lag),
                "broker": rates.cpu,
            }
        self._append(values)

    def skip(self) -> None:
        """Add a poll without a reply."""
        self._append({})

    def curve(self, name: str) -> list[float | None]:
        """Return the values, oldest first."""
        return list(self._curves[name])

    def _append(self, values: Mapping[str, float | None]) -> None:
        for name, curve in self._curves.items():
            curve.append(values.get(name))


def waiting(status: Mapping[str, Any]) -> float:
    """Return the number of messages queued or in flight."""
    census = status.get("census") or {}
    return float(census.get("queued", 0) + census.get("inflight", 0))


def spark(curve: list[float | None], width: int) -> str:
    """Draw the last ``width`` values on one line, right-aligned and scaled to the highest."""
    (line,) = area(curve, width, 1)
    return line


def area(curve: list[float | None], width: int, height: int) -> list[str]:
    """Draw the last ``width`` values as an area of ``height`` lines, top line first.

    Values above 0 are at least a thin line; unknown values are dots.
    """
    shown = curve[-width:] if width > 0 else []
    most = max((value for value in shown if value is not None), default=0.0)
    levels = [_level(value, most, height * _STEPS) for value in shown]
    blank = " " * (width - len(shown))
    return [
        blank + "".join(_block(level, floor) for level in levels)
        for floor in range((height - 1) * _STEPS, -1, -_STEPS)
    ]


def _level(value: float | None, most: float, steps: int) -> int:
    if value is None:
        return _UNKNOWN
    return max(1, round(value / most * steps)) if value > 0 else 0


def _block(level: int, floor: int) -> str:
    """Return the part of a column of ``level`` steps in the line that begins above ``floor``."""
    if level == _UNKNOWN:
        return _LEVELS[0] if floor else _GAP
    return _LEVELS[min(max(level - floor, 0), _STEPS)]


def _p99(found: Percentiles | None) -> float | None:
    """Return the maximum of a curve; 0 without values."""
    if found is None:
        return 0.0
    return None if math.isinf(found.p99) else found.p99
