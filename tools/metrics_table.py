"""Writes the table of metrics in docs/operations.md, from the declarations of metrics.

The rest of the page is written by hand.

    python tools/metrics_table.py          writes the table
    python tools/metrics_table.py --check  exits 1 if the table is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from actors.inspection.status_metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operations.md"

BEGIN = "<!-- metrics: written by tools/metrics_table.py -->\n"
END = "<!-- end of metrics -->\n"


def table() -> str:
    """Return the table."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the text of the page with the current table."""
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + table() + END + tail


def main(arguments: list[str]) -> int:
    """Write or check the table; the exit code is 1 if it is not up to date."""
    text = page()
    if "--check" in arguments:
        if PAGE.read_text("utf-8") != text:
            sys.stderr.write("docs/operations.md: run python tools/metrics_table.py\n")
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
