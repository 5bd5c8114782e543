"""Writes docs/contribute/events.schema.json: the JSON Schema of an event in the log.

python tools/events_schema.py          writes the file
python tools/events_schema.py --check  exits 1 if the file is not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from eventstore.format.event_parsing import json_schema

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contribute" / "events.schema.json"


def page() -> str:
    """Return the schema as text."""
    return json.dumps(json_schema(), indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the file; the exit code is 1 if it is not up to date."""
    if "--check" not in arguments:
        PAGE.write_text(page(), "utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text("utf-8") == page():
        return 0
    sys.stderr.write("docs/contribute/events.schema.json: run python tools/events_schema.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
