"""Writes docs/openapi.json, and the tables in docs/api.md, from the table of operations.

The rest of the page is written by hand.

    python tools/api_reference.py          writes both
    python tools/api_reference.py --check  exits 1 if one is not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.web.api.openapi import openapi_document
from cli.web.api.operations import OPERATIONS
from cli.web.api.problem_types import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.web.api.operation import Operation
    from cli.web.api.problem_types import ProblemType

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
DOCUMENT = ROOT / "docs" / "openapi.json"

BEGIN = "<!-- {}: written by tools/api_reference.py -->\n"
END = "<!-- end of {} -->\n"


def document() -> str:
    """Return the OpenAPI document."""
    return json.dumps(openapi_document(OPERATIONS), indent=1) + "\n"


def operations_table() -> str:
    """Return the table of operations."""
    rows = ["| method and path | parameters | role | answer |", "|---|---|---|---|"]
    for operation in OPERATIONS:
        route = f"`{operation.method} {operation.path}`"
        rows.append(
            f"| {route} | {' '.join(_parameters(operation))} | `{operation.role}` | "
            f"{operation.doc} Command: `{operation.command.partition(',')[0]}`. |"
        )
    return "\n".join(rows) + "\n"


def _parameters(operation: Operation) -> Iterator[str]:
    schema = operation.params.model_json_schema()
    common = {"log", "after", "limit", "next", *operation.path_params}
    required = schema.get("required", ())
    for name in schema.get("properties", {}):
        if name not in common:
            yield f"`{name}`" if name in required else f"[`{name}`]"


def problems_table() -> str:
    """Return the table of problem types."""
    rows = ["| type | status | what to do |", "|---|---|---|"]
    rows += [f"| `{kind.name}` | {kind.status} | {kind.title}. {kind.doc} |" for kind in _sorted()]
    return "\n".join(rows) + "\n"


def _sorted() -> list[ProblemType]:
    return sorted(BY_NAME.values(), key=lambda kind: (kind.status, kind.name))


def page() -> str:
    """Return the text of the page with the current tables."""
    text = PAGE.read_text("utf-8")
    for name, table in (("operations", operations_table()), ("problems", problems_table())):
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = text.partition(begin)
        text = head + begin + table + end + rest.partition(end)[2]
    return text


def main(arguments: list[str]) -> int:
    """Write or check both files; the exit code is 1 if one is not up to date."""
    for path, text in ((PAGE, page()), (DOCUMENT, document())):
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
        elif path.read_text("utf-8") != text:
            sys.stderr.write(f"{path.name}: run python tools/api_reference.py\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
