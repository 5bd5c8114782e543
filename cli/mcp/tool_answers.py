r"""The answers of tools: bounded in rows, bytes and time, and harmless whatever clients chose.

Text that clients choose (identifiers, topics, payloads, properties) is escaped as at the terminal:
control characters, and those that change the direction of text, become ``\u001b``. Arguments may
use that form.
"""

import base64
import json
from typing import Any, Final

from cli.common import text

MAX_ROWS: Final = 50
MAX_BYTES: Final = 16 * 1024
MAX_PAYLOAD: Final = 256
"""Bytes of a payload that are shown."""
_LONGEST_TEXT: Final = 1000
"""Characters of any other text that are shown."""
_SENTENCES: Final = frozenset({"subject", "title", "evidence", "cause", "next"})
"""Members of problems, in which names are escaped already."""
_SPARE: Final = 1024
"""Bytes of an answer without its rows."""


def harmless(value: object, *, sentence: bool = False) -> Any:
    """Return a JSON value with all text of it escaped, names of members included.

    ``sentence``: names in its text are escaped already.
    """
    if isinstance(value, str):
        return printable(value) if sentence else text.escaped(value, _LONGEST_TEXT)
    if isinstance(value, dict):
        shown = {text.escaped(str(key), _LONGEST_TEXT): each for key, each in value.items()}
        return {key: harmless(each, sentence=key in _SENTENCES) for key, each in shown.items()}
    if isinstance(value, list | tuple):
        return [harmless(each, sentence=sentence) for each in value]
    return value


def printable(sentence: str, limit: int = _LONGEST_TEXT) -> str:
    """Return a sentence, whose names are escaped, without unprintable characters."""
    return text.printable(sentence[:limit])


def unescaped(word: str) -> str:
    """Return a name from the form in which :func:`harmless` shows it; other text is unchanged."""
    if "\\" not in word:
        return word
    try:
        decoded = json.loads('"' + word.replace('"', '\\"') + '"')
    except ValueError:
        return word
    return decoded if isinstance(decoded, str) else word


def arguments_of(value: object) -> Any:
    """Return arguments with all their text as it is named in the log."""
    if isinstance(value, str):
        return unescaped(value)
    if isinstance(value, dict):
        return {key: arguments_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [arguments_of(each) for each in value]
    return value


def row_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as a row: harmless, with a short payload, and not larger than an answer."""
    row = harmless(_with_short_payload(item))
    while size_of(row) > MAX_BYTES - _SPARE and _shorten(row):
        pass
    return row if size_of(row) <= MAX_BYTES - _SPARE else {"omitted": "too large"}


def _with_short_payload(item: dict[str, Any]) -> dict[str, Any]:
    payload = item.get("payload")
    if isinstance(payload, str):
        encoded = payload.encode("utf-8", "surrogatepass")
        if len(encoded) > MAX_PAYLOAD:
            shown = encoded[:MAX_PAYLOAD].decode("utf-8", "ignore")
            return {**item, "payload": shown, "payload_cut": True}
    encoded_payload = item.get("payload_base64")
    if isinstance(encoded_payload, str) and len(encoded_payload) > 4 * MAX_PAYLOAD // 3:
        shown = base64.b64encode(base64.b64decode(encoded_payload)[:MAX_PAYLOAD]).decode()
        return {**item, "payload_base64": shown, "payload_cut": True}
    return item


def size_of(value: object) -> int:
    """Return the size of a value as JSON."""
    return len(text.json_line(value))


def _shorten(row: dict[str, Any]) -> bool:
    """Halve the longest list or object of a row, and say so; return whether there was one."""
    parts = [(size_of(each), key) for key, each in row.items() if isinstance(each, list | dict)]
    parts = [(size, key) for size, key in parts if len(row[key]) > 1 and key != "omitted"]
    if not parts:
        return False
    _, key = max(parts)
    held = row[key]
    kept = len(held) // 2
    row[key] = held[:kept] if isinstance(held, list) else dict([*held.items()][:kept])
    omitted = row.setdefault("omitted", {})
    omitted[key] = omitted.get(key, 0) + len(held) - kept
    return True


class Page:
    """The rows of an answer, as long as there is room."""

    def __init__(self, limit: int) -> None:
        self._limit = min(limit, MAX_ROWS)
        self._left = MAX_BYTES - _SPARE
        self.rows: list[dict[str, Any]] = []

    def add(self, item: dict[str, Any]) -> bool:
        """Add an item; return False if there is no room for it."""
        if len(self.rows) == self._limit:
            return False
        row = row_of(item)
        size = size_of(row) + 1
        if self.rows and size > self._left:
            return False
        self._left -= size
        self.rows.append(row)
        return True
