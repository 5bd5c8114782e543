"""Publication times and topics of a session's messages, read from the log."""

import contextlib
from itertools import islice
from typing import Any

from cli.common.progress_bar import progress
from cli.logs.broker_client import LiveBroker
from projections.views.session_view import SessionView, with_messages
from protocol.errors import FoldmqError

_READ = 1000
"""Maximum number of messages read from the log."""


async def with_published(broker: LiveBroker, view: SessionView, *, thorough: bool) -> SessionView:
    """Return a session with the publication times of its messages, as far as the log has them.

    Also adds topics that the broker no longer has in memory. ``thorough`` searches for these also
    in copies made when the log was cut.
    """
    messages = list(islice(view.messages(), _READ))
    if not messages:
        return view
    # Most sessions have no message to look up: reading the log takes long to import.
    from eventstore.reading.log_source import open_log
    from projections.past.topic_lookup import MessageTopics

    # Optional: the broker may cut the log meanwhile.
    with contextlib.suppress(FoldmqError):
        source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
        book = MessageTopics(source)
        await book.load(row.position for row in messages)
        view = with_messages(view, book)
        unknown = [row.position for row in view.messages() if row.topic is None]
        if thorough and unknown:
            # Usually all topics are known, and the whole log need not be read.
            book = MessageTopics(source, thorough=True, progress=progress)
            await book.load(unknown)
            view = with_messages(view, book)
    return view


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
        await book.load(row["position"] for row in rows[:_READ])
        for row in rows:
            message = book.get(row["position"])
            if message is not None:
                row["set_by"], row["set_ms"] = row["set_by"] or message.client, message.time_ms
                row["set_before_ms"] = message.copied_ms
