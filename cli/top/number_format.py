"""Numbers in at most seven characters, with a unit where needed."""

import math

from cli.common.tables import whole_span

NOTHING = "-"
"""Shown for unknown values."""
_BYTES = ("KiB", "MiB", "GiB", "TiB")
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """Return a count: ``7``, ``0.5``, ``1,234``, ``12.3k``."""
    if value is None:
        return NOTHING
    if value >= 9999.5:
        for size, unit in _LARGE:
            # Values that would round up to four digits get the next unit.
            if value >= 0.9995 * size:
                return f"{_three_digits(value / size)}{unit}"
    if value >= 9.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.05 else "<0.1"


def figure_duration(seconds: float | None) -> str:
    """Return a duration: ``0.42 ms``, ``12.0 ms``, ``1.50 s``.

    ``inf`` is shown as longer than the measured range.
    """
    if seconds is None:
        return NOTHING
    if math.isinf(seconds):
        return "beyond"
    if seconds >= 0.9995:
        return f"{_three_digits(seconds)} s"
    return f"{_three_digits(seconds * 1000)} ms"


def figure_size(value: float | None) -> str:
    """Return a number of bytes: ``512 B``, ``12.1 KiB``, ``1.50 GiB``."""
    if value is None:
        return NOTHING
    if value < 1023.5:
        return f"{value:.0f} B"
    for unit in _BYTES:
        value /= 1024
        if value < 1000 or unit == _BYTES[-1]:
            break
    return f"{_three_digits(value)} {unit}"


def percent(share: float | None) -> str:
    """Return a fraction of 1 as a percentage."""
    if share is None:
        return NOTHING
    value = share * 100
    if value >= 9.95 or value == 0:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if value >= 0.05 else "<0.1%"


def age_text(milliseconds: int) -> str:
    """Return an age in its largest unit: ``5s``, ``3min``, ``2h``."""
    return whole_span(max(0, milliseconds)).replace(" ", "")


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
