"""What the log adds to sessions and retained messages: topics, times and publishers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cli.web.web_log_client import WebLogClient
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import INDEX_BITS, Position, sequence_of
from eventstore.reading.log_source import LogSource
from projections.past.origin_search import OriginPlace, origins_of
from projections.past.topic_lookup import MessageTopics
from projections.views.session_view import SessionView, with_messages

_MAX_RECORDS = 32


async def described(view: SessionView, source: LogSource, topics: MessageTopics) -> SessionView:
    """Return a view with publication times and missing topics of its messages.

    Both are read from the log, ``source``, from a few unknown records at a time, so some appear
    only when the view is rendered again. Raises CorruptLog and CutMeanwhile.
    """
    unknown = (row.position for row in view.messages() if topics.get(row.position) is None)
    # Events being written are in no record yet.
    await topics.load(of_few_records(ref for ref in unknown if sequence_of(ref) <= source.last))
    return with_messages(view, topics)


def of_few_records(refs: Iterable[Position]) -> list[Position]:
    """Return the positions in the first few records, because records may be large."""
    records: set[int] = set()
    chosen_refs = []
    for ref in refs:
        if len(records) < _MAX_RECORDS or ref >> INDEX_BITS in records:
            records.add(ref >> INDEX_BITS)
            chosen_refs.append(ref)
    return chosen_refs


async def describe_setters(link: WebLogClient, rows: Sequence[dict[str, Any]]) -> None:
    """Add publisher and time to retained messages, as far as a few records of the log contain them.

    The rows are of one log, which they name. The others follow when the page is rendered again.
    Raises NoLiveBroker, and the errors of reading the log.
    """
    for row in rows:
        row.setdefault("set_by", None)
        row.setdefault("set_ms", None)
        row.setdefault("set_before_ms", None)
    unknown = [row for row in rows if row["set_ms"] is None]
    if not unknown:
        return
    async with link.log(unknown[0]["log"]) as source:
        book = MessageTopics(source)
        refs = (row["position"] for row in unknown if sequence_of(row["position"]) <= source.last)
        await book.load(of_few_records(refs))
        for row in unknown:
            published = book.get(row["position"])
            if published is not None:
                row["set_by"], row["set_ms"] = row["set_by"] or published.client, published.time_ms
                row["set_before_ms"] = published.copied_ms
        copied = [
            row["position"] for row in unknown if (row["set_by"] or "").startswith(LOG_SESSION)
        ]
        origins = await origins_of(source, of_few_records(copied))
    await _describe_origins(link, unknown, origins)


async def _describe_origins(
    link: WebLogClient, rows: Sequence[dict[str, Any]], origins: Mapping[Position, OriginPlace]
) -> None:
    """Name the clients that published messages in the logs from which they were taken."""
    for log in {place.log for place in origins.values()}.intersection(link.names):
        async with link.log(log) as source:
            book = MessageTopics(source)
            await book.load(
                of_few_records(
                    origin_place.ref for origin_place in origins.values() if origin_place.log == log
                )
            )
            for row in rows:
                origin = origins.get(row["position"])
                published = (
                    book.get(origin.ref) if origin is not None and origin.log == log else None
                )
                if published is not None:
                    row["set_by"], row["set_ms"] = published.client, published.time_ms
