"""Names, times, sizes and payloads as text for display: tables, log lines and pages.

Values that clients choose (client identifiers, topics, payloads) cannot break the layout: control
characters and all other non-printable characters are escaped as in JSON.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Final

NAME_LIMIT = 120
"""Largest number of characters of a name in a line."""
PAYLOAD_LIMIT = 200
"""Largest number of characters of a payload in a line."""
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def escaped(text: str, limit: int = NAME_LIMIT) -> str:
    """Return ``text`` on one line, with printable characters only, cut at ``limit``."""
    excess = len(text) - limit
    head = text[:limit] if excess > 0 else text
    if not head.isprintable() or "\\" in head:
        head = "".join(_escape(letter) for letter in head)
    return f"{head}...({excess} more)" if excess > 0 else head


def _escape(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    if letter.isprintable():
        return letter
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]


def name(text: str, limit: int = NAME_LIMIT) -> str:
    """Return a client identifier, topic or filter, quoted if it is empty or contains blanks."""
    shown = escaped(text, limit)
    if text and " " not in text and '"' not in text:
        return shown
    return '"' + shown.replace('"', '\\"') + '"'


def payload_text(payload: bytes, limit: int = PAYLOAD_LIMIT) -> str:
    r"""Return a payload, quoted; bytes that are not UTF-8 as ``\xNN``."""
    key = getattr(payload, "closed_key", 0)  # of ``eventstore.format.sealing.SealedBytes``
    if key:
        return f"sealed under key {key}"
    head = payload[: 4 * limit]
    text = head.decode("utf-8", "surrogateescape")
    shown = "".join(
        f"\\x{ord(letter) - 0xDC00:02x}"
        if "\udc80" <= letter <= "\udcff"
        else _escape(letter).replace('"', '\\"')
        for letter in text[:limit]
    )
    more = len(payload) - len(text[:limit].encode("utf-8", "surrogateescape"))
    return f'"{shown}"' + (f"...({more} more bytes)" if more else "")


PAYLOAD_FIELDS: Final = ("payload", "payload_base64", "sealed_key")
"""Names of the fields of :func:`payload_field`."""


def payload_field(payload: bytes) -> dict[str, str]:
    """Return a payload as a field of a JSON object, named as ``foldmq sub --json`` does.

    Of a payload that cannot be read it is the number of its key.
    """
    key = getattr(payload, "closed_key", 0)
    if key:
        return {"sealed_key": str(key)}
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def json_line(value: object) -> str:
    """Return a value as one line of JSON, all of it printable ASCII."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


def clock(time_ms: int) -> str:
    """Return a time (Unix, milliseconds) as local time, in a form that --from and --at accept."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03}"


def iso(time_ms: int) -> str:
    """Return a time (Unix, milliseconds) in UTC, in ISO format."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03}Z"


def size(count: int) -> str:
    """Return a number of bytes with its unit."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def count_of(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 message``, ``1,200 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def log_prefix(log: str) -> str:
    """Return what precedes a line about one of several logs; empty for a log without a name."""
    return f"log {name(log)}: " if log else ""


def duration(milliseconds: int) -> str:
    """Return a span of time in its two largest units."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    seconds_left = milliseconds // 1000
    parts: list[str] = []
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds_left >= seconds or (parts and len(parts) < 2):
            parts.append(f"{seconds_left // seconds} {unit}")
            seconds_left %= seconds
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))
