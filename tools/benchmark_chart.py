"""Draw the chart of the README from the table of ``docs/benchmarks.md``.

``python tools/benchmark_chart.py`` writes ``docs/benchmarks.svg``; with ``--check`` it only says
whether that file is up to date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "benchmarks.md"
PAGE = ROOT / "docs" / "benchmarks.svg"

PANELS = (
    ("qos1: delivered /s", "Messages per second at QoS 1", "more is better", "{:,.0f}", 3),
    ("latency: p50 ms", "The price: median latency at QoS 1", "less is better", "{:.2f} ms", 2),
)
"""The rows that are drawn: load, heading, how to read it, how a value is written, columns.

NATS Server does not keep up with the load of the second one: what it shows is its queue.
"""

BROKERS = (
    ("foldmq", "on disk", "#2563eb"),
    ("Mosquitto", "in memory", "#9ca3af"),
    ("NATS Server", "on disk", "#9ca3af"),
)
"""The columns: name, where a message is when it is acknowledged, colour."""

WIDTH, LABELS, BAR, STEP, HEAD = 760, 190, 440, 34, 46


@dataclass(frozen=True, slots=True)
class Panel:
    """A row of the table."""

    heading: str
    reading: str
    pattern: str
    values: tuple[float, ...]


def read(text: str) -> list[Panel]:
    """Return the rows that are drawn; raises ValueError if one is missing."""
    panels = []
    for load, heading, reading, pattern, columns in PANELS:
        found = re.search(rf"(?m)^\| {re.escape(load)} +\|(.+)$", text)
        if found is None:
            raise ValueError(f"{TABLE.name} has no row {load!r}")
        cells = [cell.strip().replace(",", "") for cell in found[1].split("|")]
        values = tuple(float(cells[column]) for column in (0, 1, 3)[:columns])
        panels.append(Panel(heading, reading, pattern, values))
    return panels


def page() -> str:
    """Return the chart."""
    panels = read(TABLE.read_text("utf-8"))
    tops = [sum(map(_height, panels[:number])) for number in range(len(panels) + 1)]
    height = tops.pop() + 12
    told = "; ".join(
        f"{panel.heading}: "
        + ", ".join(
            f"{name} {panel.pattern.format(value)}"
            for (name, _, _), value in zip(BROKERS, panel.values, strict=False)
        )
        for panel in panels
    )
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{told}">'
        ),
        (
            "<style>text{font:14px system-ui,sans-serif;fill:#1f2937}"
            ".small{font-size:12px;fill:#6b7280}.heading{font-weight:600}</style>"
        ),
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for panel, top in zip(panels, tops, strict=True):
        lines += _panel(panel, top)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _height(panel: Panel) -> int:
    return HEAD + STEP * len(panel.values)


def _panel(panel: Panel, top: int) -> list[str]:
    lines = [
        (
            f'<text class="heading" x="20" y="{top + 32}">{panel.heading} '
            f'<tspan class="small">({panel.reading})</tspan></text>'
        )
    ]
    for number, ((name, where, colour), value) in enumerate(
        zip(BROKERS, panel.values, strict=False)
    ):
        y = top + HEAD + number * STEP
        said = panel.pattern.format(value)
        length = max(2.0, BAR * value / max(panel.values))
        lines += [
            f'<text x="20" y="{y + 18}">{name} <tspan class="small">{where}</tspan></text>',
            (
                f'<rect x="{LABELS}" y="{y + 3}" width="{length:.1f}" height="22" rx="2" '
                f'fill="{colour}"/>'
            ),
            f'<text x="{LABELS + length + 8:.1f}" y="{y + 19}">{said}</text>',
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Write the chart, or say whether it is up to date."""
    if arguments == ["--check"]:
        if PAGE.is_file() and PAGE.read_text("utf-8") == page():
            return 0
        sys.stderr.write(f"{PAGE.name} is old: run python tools/{Path(__file__).name}\n")
        return 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
