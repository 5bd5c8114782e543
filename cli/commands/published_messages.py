"""Publication times and topics of a session's messages, read from the log."""

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from cli.common.progress_bar import progress
from cli.logs.broker_client import LiveBroker
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from projections.past.topic_lookup import MessageTopics

_READ = 1000
"""Maximum number of messages read from the log."""


async def add_published(broker: LiveBroker, found: dict[str, Any], *, thorough: bool) -> None:
    """Add the publication times of a session's messages: ``published_ms``, or None.

    Also adds topics that the broker no longer has in memory. ``thorough`` searches for these also
    in copies made when the log was cut.
    """
    for row in _messages(found):
        row["published_ms"] = None
    rows = list(islice(_messages(found), _READ))
    if not rows:
        return
    # Most sessions have no message to look up: reading the log takes long to import.
    from eventstore.reading.log_source import open_log
    from projections.past.topic_lookup import MessageTopics

    # Optional: the broker may cut the log meanwhile.
    with contextlib.suppress(FoldmqError):
        source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
        book = MessageTopics(source)
        await book.load(row["ref"] for row in rows)
        _take(book, rows)
        unknown = [row for row in rows if row["topic"] is None]
        if thorough and unknown:
            # Usually all topics are known, and the whole log need not be read.
            book = MessageTopics(source, thorough=True, progress=progress)
            await book.load(row["ref"] for row in unknown)
            _take(book, unknown)


async def add_setters(broker: LiveBroker, rows: list[dict[str, Any]]) -> None:
    """Add publisher and time to retained messages: ``set_by``, ``set_ms``, or None.

    The time is read from the log. Of a message whose record was cut off, only the time of a
    checkpoint's copy is known: ``set_before_ms``. A broker of an earlier version does not tell the
    publisher either, which the log may have.
    """
    for row in rows:
        row["set_by"], row["set_ms"] = row.get("set_by"), None
        row["set_before_ms"] = None
    if not rows:
        return
    from eventstore.reading.log_source import open_log
    from projections.past.topic_lookup import MessageTopics

    # Optional: the broker may cut the log meanwhile.
    with contextlib.suppress(FoldmqError):
        source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
        book = MessageTopics(source)
        await book.load(row["ref"] for row in rows[:_READ])
        for row in rows:
            known = book.get(row["ref"])
            if known is not None:
                row["set_by"], row["set_ms"] = row["set_by"] or known.client, known.time_ms
                row["set_before_ms"] = known.copied_ms


def _messages(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if found["oldest"] is not None:
        yield found["oldest"]
    for name in ("inflight", "releasing", "inbound"):
        yield from found[name]["rows"]


def _take(book: "MessageTopics", rows: list[dict[str, Any]]) -> None:
    for row in rows:
        known = book.get(row["ref"])
        if known is not None:
            row["topic"], row["published_ms"] = known.topic, known.time_ms
