"""Writes docs/spark-columns.md: the columns of the tables that Spark reads, with their events.

python tools/columns_table.py          writes the page
python tools/columns_table.py --check  exits 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from spark.tables.column_meanings import MEANINGS
from spark.tables.columns import GRAINS
from spark.tables.entry_columns import MAKERS
from spark.tables.event_groups import WITH_BLOCKS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "spark-columns.md"

INTRODUCTION = """\
# Columns of the log in Spark

Written by `tools/columns_table.py` from `spark/tables/columns.py` and
`spark/tables/column_meanings.py`; do not edit.

The option `rows` of the data source chooses one of three tables of the same log
([spark.md](spark.md#in-a-notebook)). A value that an event does not have is null. A *position* is
one number, `seq << 20 | index`, and a `ref` is the position of another entry: `ref` joins with
`position` of the same `node`. Times are in UTC.
"""

_MESSAGES: Final = "MessagePublished, MessagesCarried, RetainedSnapshot, WillArmed"
_TABLES: Final = {
    "entries": (
        "A row for each position. An event about 50 messages has 50 entries; any other event has\n"
        "one. The last column lists the types of events that have the column, if not all have it;\n"
        f"*messages* stands for {_MESSAGES}."
    ),
    "events": "A row for each event, as it was written.",
    "records": "A row for each record: each message of the JetStream stream.",
}
_MAX: Final = 9
"""Maximum types that are listed."""


def _owners(column: str) -> str:
    """Return the types of events that have a column of entries."""
    found = {kind for kind, makers in MAKERS.items() if column in makers}
    if column == "payload":
        found = {*WITH_BLOCKS}
    if len(found) > _MAX:
        return "all events of a session"
    names = ", ".join(sorted(found))
    return "messages" if names == _MESSAGES else names


def _is_known(table: str, name: str) -> bool:
    """Return whether a column is also one of entries, with the same type and meaning."""
    return (
        name in GRAINS["entries"]
        and GRAINS[table][name] == GRAINS["entries"][name]
        and MEANINGS[table][name] == MEANINGS["entries"][name]
    )


def page() -> str:
    """Return the text of docs/spark-columns.md."""
    parts = [INTRODUCTION]
    for table, columns in GRAINS.items():
        named = table == "entries"
        parts.append(f"\n## {table}\n\n{_TABLES[table]}\n\n")
        known = [] if named else [name for name in columns if _is_known(table, name)]
        if known:
            parts.append(f"As above: {', '.join(f'`{name}`' for name in known)}.\n\n")
        parts.append("| column | type | meaning |" + (" events |\n" if named else "\n"))
        parts.append("|---|---|---|" + ("---|\n" if named else "\n"))
        for name, kind in columns.items():
            if name in known:
                continue
            meaning = MEANINGS[table][name].replace("|", "\\|")
            row = f"| `{name}` | {kind} | {meaning} |"
            parts.append(row + (f" {_owners(name)} |\n" if named else "\n"))
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if it is not up to date."""
    text = page()
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write("docs/spark-columns.md: run python tools/columns_table.py\n")
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
