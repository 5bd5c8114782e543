"""Draws the chart of the README from the tables of ``bench/results.md``, and fills in its table.

``python tools/benchmark_chart.py`` writes ``docs/benchmarks.svg`` and the part of ``README.md``
that shows it; with ``--check`` it only reports whether both are up to date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "bench" / "results.md"
PAGE = ROOT / "docs" / "benchmarks.svg"

README = ROOT / "README.md"

PANELS = (
    (
        "pairs: delivered /s",
        "Devices, one packet at a time: messages per second at QoS 1",
        "500 to 500, more is better",
        "{:,.0f}",
        3,
    ),
    (
        "one: p50 ms",
        "One client, one message at a time: median latency at QoS 1",
        "less is better",
        "{:.2f} ms",
        3,
    ),
    (
        "qos1: delivered /s",
        "Bulk: messages per second at QoS 1",
        "4 to 4, more is better",
        "{:,.0f}",
        3,
    ),
    (
        "latency: p50 ms",
        "Median latency at QoS 1 and 5,000 messages per second",
        "less is better",
        "{:.2f} ms",
        2,
    ),
)
"""The rows of the chart: load, heading, explanation, format of a value, columns.

A row that was not measured is left out. NATS Server does not keep up with the load of the last one:
its value is that of its queue."""

LINES = (
    ("pairs: delivered /s", "500 publishers to 500 subscribers, QoS 1, messages/s"),
    ("fanin: delivered /s", "1,000 publishers to one subscriber, QoS 1, messages/s"),
    ("cmd: delivered /s", "one publisher commands 1,000 devices, QoS 1, messages/s"),
    ("conn: connected /s", "clients that connect and subscribe, /s"),
    ("one: p50 ms", "one message at a time, median latency in ms"),
    ("qos1: delivered /s", "bulk: 4 to 4, window 200, QoS 1, messages/s"),
    ("qos0: delivered /s", "bulk: 4 to 4, QoS 0 (no guarantee), messages/s"),
)
"""The rows of the README's table, and their labels; rows without a measurement are left out."""

BROKERS = (
    ("foldmq", "on disk", "#2563eb"),
    ("Mosquitto", "in memory", "#9ca3af"),
    ("NATS Server", "on disk", "#9ca3af"),
)
"""The columns: name, place of a message when it is acknowledged, colour."""

WIDTH, LABELS, BAR, STEP, HEAD = 760, 190, 440, 34, 46


@dataclass(frozen=True, slots=True)
class Panel:
    """A row of the chart."""

    heading: str
    reading: str
    pattern: str
    values: tuple[float | None, ...]
    """None: the broker lost messages, or did not finish."""


def read(text: str) -> list[Panel]:
    """Return the rows of the chart; raises ValueError if there is none."""
    panels = [
        Panel(heading, reading, pattern, tuple(map(_value, cells[:columns])))
        for load, heading, reading, pattern, columns in PANELS
        if (cells := _cells(text, load)) and _value(cells[0]) is not None
    ]
    if not panels:
        raise ValueError(f"{TABLE.name} has none of the rows of the chart")
    return panels


def _cells(text: str, load: str) -> list[str] | None:
    """Return the values of the brokers that were measured; None: there is no such row."""
    marked = r"(?ms)^<!-- make bench: \w+ -->$(.*?)^<!-- end of \w+ -->$"
    for part in re.findall(marked, text):
        row = re.search(rf"(?m)^\| {re.escape(load)} +\|.+$", part)
        if row is None:
            continue
        head = next(line for line in part.splitlines() if line.startswith("| load "))
        cells = dict(zip(_split(head), _split(row[0]), strict=True))
        columns = [f"{name}, {where}" for name, where, _ in BROKERS]
        return [cells[column] for column in columns if column in cells]
    return None


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _value(cell: str) -> float | None:
    return None if cell == "-" else float(cell.replace(",", ""))


def _value_text(panel: Panel, value: float | None) -> str:
    return "fails" if value is None else panel.pattern.format(value)


def chart_text(text: str) -> str:
    """Return the content of the chart in words."""
    return "; ".join(
        f"{panel.heading}: "
        + ", ".join(
            f"{name} {_value_text(panel, value)}"
            for (name, _, _), value in zip(BROKERS, panel.values, strict=False)
        )
        for panel in read(text)
    )


def readme(old: str, text: str) -> str:
    """Return the README with the chart and the table for the tables ``text``."""
    rows = [(meaning, cells) for load, meaning in LINES if (cells := _cells(text, load))]
    count = max(len(cells) for _, cells in rows)
    head = ["load", *(f"{name}, {where}" for name, where, _ in BROKERS[:count])]
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * count}|"]
    lines += [f"| {' | '.join([meaning, *cells])} |" for meaning, cells in rows]
    image = f"![{chart_text(text)}](docs/benchmarks.svg)"
    return _with(_with(old, "chart", image), "figures", "\n".join(lines))


def _with(old: str, part: str, content: str) -> str:
    """Return the README with other content between the marks of a part."""
    begin, end = f"<!-- tools/benchmark_chart.py: {part} -->", f"<!-- end of the {part} -->"
    marked = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    if len(marked.findall(old)) != 1:
        raise ValueError(f"{README.name} must have exactly one part between {begin} and {end}")
    return marked.sub(lambda found: f"{found[1]}{content}\n{found[2]}", old)


def page() -> str:
    """Return the chart."""
    text = TABLE.read_text("utf-8")
    panels = read(text)
    tops = [sum(map(_height, panels[:number])) for number in range(len(panels) + 1)]
    height = tops.pop() + 12
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{chart_text(text)}">'
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
        longest = max(known for known in panel.values if known is not None)
        length = max(2.0, BAR * (value or 0) / longest)
        lines += [
            f'<text x="20" y="{y + 18}">{name} <tspan class="small">{where}</tspan></text>',
            (
                f'<rect x="{LABELS}" y="{y + 3}" width="{length:.1f}" height="22" rx="2" '
                f'fill="{colour}"/>'
            ),
            f'<text x="{LABELS + length + 8:.1f}" y="{y + 19}">{_value_text(panel, value)}</text>',
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Write the chart and the README's part, or report whether they are up to date."""
    made = {PAGE: page(), README: readme(README.read_text("utf-8"), TABLE.read_text("utf-8"))}
    old = [
        path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text
    ]
    if arguments == ["--check"]:
        for path in old:
            sys.stderr.write(
                f"{path.name} is out of date: run python tools/{Path(__file__).name}\n"
            )
        return 1 if old else 0
    for path in old:
        path.write_text(made[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
