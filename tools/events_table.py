"""Writes docs/contribute/events.md: the events of the log, from the docstrings of their classes.

Fields with the same meaning everywhere are described once, in ``COMMON``.

    python tools/events_table.py          writes the page
    python tools/events_table.py --check  exits 1 if the page is not up to date
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.events import Delivered, MessagePublished, Queued
from eventstore.format.records import GENESIS, decode_record, encode_record, link_of
from eventstore.reasons import CLOSE_REASONS, DROP_REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contribute" / "events.md"
_MODULES = (
    "events.py",
    "node_events.py",
    "destination_events.py",
    "erasure_events.py",
    "turn_events.py",
)
SOURCES = [ROOT / "eventstore" / "format" / name for name in _MODULES]

INTRODUCTION = """\
# Events

Written by `tools/events_table.py` from the docstrings in `eventstore/format/events.py`,
`node_events.py`, `destination_events.py`, `erasure_events.py` and `turn_events.py`; do not edit.

The log of a node is the JetStream stream `FOLDMQ_LOG_<node>` on the subject `foldmq.log.<node>`.
Each JetStream message is a *record*: the events of one or more turns of the event loop and their
payloads. One broker writes the log; records are never changed.

## Record

In this order, integers big-endian:

| bytes | what |
|---|---|
| 4 | the letters `FMQ` and the format version, 2 |
| 32 | SHA-256 of everything after it: the checksum, and the record's *link* |
| 32 | link of the previous record; zeros in the first record |
| 1 | flags: 128 in every record; 1: the JSON is deflated; 4: destinations; 8, 16: sealed |
| 4 | length of the JSON header as stored |
| 4 | length of the JSON header |
| 2 + 10 each | with flag 4: the number of *destinations*, and these |
| 16 | with flag 8: the salt of the sealed contents |
| n | the JSON header, UTF-8 |
| rest | the payload area: payloads one after the other, raw; see [Properties](#properties) |

A *destination* is the number of a log (2), and the sequence of the last record before this one that
is meant for it (8). No broker writes destinations yet.

Format 1 has the length of the JSON (4) in the place of flags, lengths and destinations. It is read
for ever, and a log may have records of both: an upgraded broker goes on in format 2 and rewrites
nothing. The leader of a cluster writes format 1 in its first minute, and while it hears a node that
reads no other.

Deflated JSON is raw deflate (RFC 1951) with the dictionary in `eventstore.format.json_dictionary`,
whose SHA-256 is checked when it is loaded; another dictionary would have another flag. JSON of 200
bytes to 16 KiB is deflated, unless it has a `LogSalvaged` or gets no smaller. A reader inflates no
more than the stated length, which is 64 MiB at most. A record with an unknown flag is refused as
that of a later version.

A record with flags 8 and 16 has sealed contents. A part of the payload area is sealed with AES-256
in counter mode, under the BLAKE2b of 32 bytes over nothing, keyed with the key that the header
names, with the personalization `foldmq-seal-2`. The counter of the area's first byte is the salt.

With flag 8 alone, which is no longer written, the BLAKE2b is over the salt, with `foldmq-seal-1`,
and the counter begins at 0; `sealed` is a list of begin, length and key for each part.

The name of a person has a key, too. In the place of a topic, `TopicsKeyed` has its entry,
`$+client/TOKEN/SEALED` or `$+user/TOKEN/SEALED`, which no topic is like. The token is `~` and the
base32, in small letters, of a BLAKE2b of 10 bytes over a salt and the key with the personalization
`foldmq-token-1`. `SEALED`, in base64 for URLs, is the salt (16) and, sealed under it and the key as
with flag 8 alone, the length of the name (2), the name and zeros up to a multiple of 32 bytes.
Earlier entries have no salt: it is `name` and spaces, and the token was made without.

The JSON header is an object:

| member | what |
|---|---|
| `node` | name of the node that wrote the record |
| `time` | Unix time in milliseconds at which the first event of the record was appended |
| `part` | number of earlier records of the same turn |
| `last` | `false` if the turn continues in the next record |
| `jumps` | total of the clock's jumps in milliseconds, and the record with the last one, if any |
| `sealed` | with flag 16: begins, lengths, keys of sealed parts; one number if all are equal |
| `events` | the events, each an object |

A changed byte breaks the checksum; a missing, repeated or moved record breaks the chain of links.

A turn that does not fit into one record is split into several, with `part` 0, 1, 2 and so on;
`last` is `true` only in the final one. Parts without a final one are void: their turn never
finished, and none of its output was sent.

Code: `eventstore.format.records.encode_record`, `eventstore.format.records.decode_record`,
`eventstore.format.records.ChainChecker`.

## Positions and runs

A *position* names one entry of the log: the stream sequence of the record, and the index of the
entry in it. It is one integer, `sequence << 20 | index`, displayed as `sequence.index`. The index
counts entries, not events: an event about 50 messages has 50 entries, so each message has its own
position.

- `MessagePublished`, `MessagesCarried` and `RetainedSnapshot` have `count` entries.
- `Delivered`, `Queued`, `Released`, `Expired`, `Assigned` and `ForwardRefused` have one entry for
  each position in `refs`.
- `Acked`, `Received`, `Refused`, `Completed`, `Redelivered` and `Returned` have one for each
  identifier in `pids`.
- Every other event has one entry.

A column of integers is written as *runs*: each element is an integer, or `[first, count, step]`,
which stands for `count` integers from `first` on. `[1, 3, 1]` is 1, 2, 3.

Code: `eventstore.format.positions.to_runs`, `eventstore.format.positions.from_runs`,
`eventstore.format.event_parsing.entries`.

## Properties

The properties that a message of MQTT 5 is passed on with are one *block* of bytes: what PUBLISH
has between its Property Length and its payload, without Topic Alias, and with Message Expiry
Interval first if there is one. In the payload area each distinct block of an event stands once,
and the last of them ends where the event's first payload begins. `blocks` has their sizes,
`block_of` says which message has which.

A message expires as many seconds after the time of the record in which it was published as its
block says. An event that refers to it or repeats it names that moment in `expires`: folds have no
clock, and a message has expired when an event says so. One that was sent before does not expire.
`expires` is in whole seconds, rounded down. The broker adds half a second, so that a message
expires at most half a second early or late.

Code: `eventstore.format.stored_properties`.

## Versions

Every event carries its type in `e` and the version of that type in `v`. A field may be added with
a default under the same version; such a field is written only where it differs from its default,
so that a log that does not use it stays as it was. Any other change needs a new version and an
upcaster in
`eventstore.format.event_parsing.UPCASTERS`, which is applied when the log is read
(`eventstore.format.event_parsing.upcast`). Unknown fields are ignored when read; unknown types and
versions are refused. The JSON Schema of all events is [events.schema.json](events.schema.json).

"""

COMMON = {
    "address": "Address and port of the client.",
    "count": "Number of messages.",
    "filter": "Topic filter of the subscription; empty if there is none.",
    "filters": "Topic filters.",
    "generation": "Generation of the connection, see SessionOpened.",
    "pids": "Packet identifiers.",
    "properties": "Reserved for properties of MQTT 5.",
    "qos": "Quality of service.",
    "refs": "Positions of the messages.",
    "retain": "The RETAIN flag.",
    "session": "Client identifier.",
    "size": "Payload bytes.",
    "topic": "Topic name.",
    "user": "User name; null without one.",
}
"""Meaning of a field that has no docstring of its own."""

EXAMPLE_TIME = 1_763_640_000_000
EXAMPLE = """\
## An example

The client `sensor` published three messages at QoS 1. They match a subscription of `screen`,
which is connected, and one of `archive`, which is offline. This is record 1 of the log of node
`n1`, {size} bytes, as stored in format 1 (format 2 deflates its JSON to a quarter):

    {head}

The JSON header, formatted here (it is stored without white space):

```json
{json}
```

The payload area, {area} bytes, holds the three payloads one after the other, `{payload}`. The
`sizes` of the first event split it: two bytes each. The messages have the positions
{positions}, displayed as 1.0, 1.1 and 1.2; the other two events refer to
them by these numbers. `screen` got them with the packet identifiers 1, 2 and 3.
"""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of an event."""

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event type."""

    name: str
    meaning: str
    version: str
    fields: list[FieldRow]


def events() -> list[EventRow]:
    """Return the event types, in the order of the modules."""
    nodes = [node for source in SOURCES for node in ast.parse(source.read_text("utf-8")).body]
    return [_event(node) for node in nodes if isinstance(node, ast.ClassDef) and _tagged(node)]


def _tagged(node: ast.ClassDef) -> bool:
    return any(
        isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == "e" for item in node.body
    )


def _event(node: ast.ClassDef) -> EventRow:
    version = ""
    fields: list[FieldRow] = []
    for item, following in _with_following(node.body):
        if not isinstance(item, ast.AnnAssign):
            continue
        name = ast.unparse(item.target)
        if name == "v":
            version = ast.unparse(item.value) if item.value else ""
        elif name != "e":
            meaning = _docstring(following) or COMMON.get(name, "")
            fields.append(FieldRow(name, _type(item), _default(item), meaning))
    return EventRow(node.name, _joined(ast.get_docstring(node) or ""), version, fields)


def _with_following(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    yield from zip(body, [*body[1:], None], strict=True)


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return _joined(str(node.value.value))
    return ""


def _type(item: ast.AnnAssign) -> str:
    text = ast.unparse(item.annotation)
    return "runs" if text == "list[Run]" else f"`{text}`".replace("|", "\\|")


def _default(item: ast.AnnAssign) -> str:
    if item.value is None:
        return "required"
    if isinstance(item.value, ast.Call):
        return "`{}`" if ast.unparse(item.annotation).startswith("dict") else "`[]`"
    return f"`{orjson.dumps(ast.literal_eval(item.value)).decode()}`"


def _joined(text: str) -> str:
    return re.sub(r"``", "`", " ".join(text.split())).replace("|", "\\|")


def _section(row: EventRow) -> str:
    lines = [f"### {row.name}", "", f"{row.meaning} Version {row.version}.", ""]
    if row.fields:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{one.name}` | {one.type} | {one.default} | {one.meaning} |" for one in row.fields
        ]
        lines.append("")
    return "\n".join(lines)


def _reasons() -> str:
    parts = ["## Reasons\n"]
    parts += ["`MessageDropped.reason` is one of:\n", "| reason | what happened |", "|---|---|"]
    parts += [f"| `{reason}` | {meaning} |" for reason, meaning in DROP_REASONS.items()]
    parts += ["", "`SessionClosed.reason` is one of:\n"]
    parts += ["| reason | in lists | what happened |", "|---|---|---|"]
    parts += [
        f"| `{reason}` | {shown.words} | {shown.sentence} |"
        for reason, shown in CLOSE_REASONS.items()
    ]
    parts.append("")
    return (
        "\n".join(parts)
        + "\n`SessionExpired.reason` is `expired`, `removed` by an operator, or `no_members` of a "
        "shared\nsubscription whose last member left it.\n\n"
    )


def _example() -> str:
    first = 1 << 20
    published = MessagePublished(
        "sensor", 1, retain=False, topics=["hall/door"], which=[], pids=[[7, 3, 1]],
        sizes=2, at=0, count=3,
    )  # fmt: skip
    told: list[Event] = [
        published,
        Delivered("screen", "hall/+", 1, pids=[[1, 3, 1]], refs=[[first, 3, 1]]),
        Queued("archive", "#", 1, refs=[[first, 3, 1]], size=6),
    ]
    data = encode_record(
        previous=GENESIS,
        node="n1",
        time_ms=EXAMPLE_TIME,
        events=told,
        payloads=(b"up", b"ok", b"no"),
        record_format=1,
    )
    record = decode_record(1, data)
    header = record.header
    return EXAMPLE.format(
        size=len(data),
        head="\n    ".join(
            (
                f"{data[:4].hex(' ')}  FMQ, format 1",
                f"{link_of(data).hex()}  checksum and link",
                f"{GENESIS.hex()}  link of the previous record: none",
                f"{data[68:72].hex(' ')}  {len(header)} bytes of JSON follow",
            )
        ),
        json=orjson.dumps(orjson.loads(header), option=orjson.OPT_INDENT_2).decode(),
        area=len(record.payload),
        payload=bytes(record.payload).decode(),
        positions=", ".join(str(first + index) for index in range(3)),
    )


def page() -> str:
    """Return the text of docs/contribute/events.md."""
    rows = events()
    listing = ", ".join(f"[{row.name}](#{row.name.lower()})" for row in rows)
    heading = (
        f"## The {len(rows)} events\n\n{listing}.\n\n"
        "Every event also has `e`, its type, and `v`, its version. Types are those of the source;\n"
        "in JSON a tuple or a sequence is an array. *Runs* are explained above.\n\n"
    )
    sections = "\n".join(_section(row) for row in rows)
    return f"{INTRODUCTION}{heading}{sections}\n{_reasons()}{_example()}"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if it is not up to date."""
    text = page()
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write("docs/contribute/events.md: run python tools/events_table.py\n")
            return 1
        return 0
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
