"""A session as of a moment in the past, in the format of the inspector; messages from the log."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import INDEX_BITS, sequence_of
from projections.past.origin_search import origins_of
from projections.past.topic_lookup import MessageTopics
from projections.state.waiting_queue import QOS_MASK, RETAIN_FLAG
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cli.web.web_log_client import WebLogClient
    from eventstore.format.positions import Position
    from eventstore.reading.log_source import LogSource
    from projections.past.origin_search import OriginPlace
    from projections.state.session import InFlight, SessionState, SubscriptionState

_MAX_RECORDS = 32


def view_of(state: SessionState, offset: int, most: int, jumped_ms: int) -> dict[str, Any]:
    """Return a session with ``most`` items of each list, starting at ``offset``.

    ``jumped_ms`` is the sum of the jumps of the clock, which times in states do not include.
    """

    def sent(item: tuple[int, InFlight]) -> dict[str, Any]:
        return _sent(item) | {"sent_ms": item[1].sent_ms + jumped_ms}

    will = state.will
    oldest = min(filter(None, map(_oldest, state.waiting.values())), default=None)
    return {
        "client": state.session,
        "connected": state.connected,
        "clean": state.clean,
        "user": state.user,
        "closed_ms": None if state.connected else state.closed_ms + jumped_ms,
        "queued": state.queued,
        "queued_bytes": state.queued_bytes,
        "level": state.level,
        "bridge": state.bridge,
        "receive_maximum": state.receive_maximum,
        "packet_maximum": state.packet_maximum,
        "shared": state.session.startswith(SHARE),
        "shared_with": None,
        "generation": state.generation,
        "last_pid": state.last_pid,
        "oldest": None if oldest is None else {"ref": oldest, "topic": None},
        "will": None
        if will is None
        else {"topic": will.topic, "qos": will.qos, "retain": will.retain, "ref": will.ref},
        "subscriptions": _part(state.subscriptions.values(), offset, most, _subscription),
        "inflight": _part(state.inflight.items(), offset, most, sent),
        "releasing": _part(state.releasing.items(), offset, most, sent),
        "inbound": _part(
            state.inbound.items(),
            offset,
            most,
            lambda item: {"pid": item[0], "ref": item[1], "topic": None},
        ),
    }


def references(view: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a view that refer to messages, longest waiting first."""
    if view["oldest"] is not None:
        yield view["oldest"]
    for key in ("inflight", "releasing", "inbound"):
        yield from view[key]["rows"]


async def describe_messages(
    view: Mapping[str, Any], source: LogSource, topics: MessageTopics
) -> None:
    """Add publication times and missing topics to the messages of a view.

    Both are read from the log, ``source``, from a few unknown records at a time, so some appear
    only when the view is rendered again. Raises CorruptLog and CutMeanwhile.
    """
    named = list(references(view))
    unknown = (one["ref"] for one in named if topics.get(one["ref"]) is None)
    # Events being written are in no record yet.
    await topics.load(of_few_records(ref for ref in unknown if sequence_of(ref) <= source.last))
    for one in named:
        known = topics.get(one["ref"])
        one["published_ms"] = None
        if known is not None:
            one["topic"], one["size"], one["published_ms"] = known[:3]


def of_few_records(refs: Iterable[Position]) -> list[Position]:
    """Return the positions in the first few records, because records may be large."""
    records: set[int] = set()
    found = []
    for ref in refs:
        if len(records) < _MAX_RECORDS or ref >> INDEX_BITS in records:
            records.add(ref >> INDEX_BITS)
            found.append(ref)
    return found


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
        refs = (row["ref"] for row in unknown if sequence_of(row["ref"]) <= source.last)
        await book.load(of_few_records(refs))
        for row in unknown:
            known = book.get(row["ref"])
            if known is not None:
                row["set_by"], row["set_ms"] = row["set_by"] or known.client, known.time_ms
                row["set_before_ms"] = known.copied_ms
        taken = [row["ref"] for row in unknown if (row["set_by"] or "").startswith(LOG_SESSION)]
        origins = await origins_of(source, of_few_records(taken))
    await _describe_origins(link, unknown, origins)


async def _describe_origins(
    link: WebLogClient, rows: Sequence[dict[str, Any]], origins: Mapping[Position, OriginPlace]
) -> None:
    """Name the clients that published messages in the logs from which they were taken."""
    for log in {place.log for place in origins.values()}.intersection(link.names):
        async with link.log(log) as source:
            book = MessageTopics(source)
            await book.load(of_few_records(one.ref for one in origins.values() if one.log == log))
            for row in rows:
                origin = origins.get(row["ref"])
                known = book.get(origin.ref) if origin is not None and origin.log == log else None
                if known is not None:
                    row["set_by"], row["set_ms"] = known.client, known.time_ms


def _part(
    items: Any, offset: int, most: int, shown: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    chosen: Iterable[Any] = islice(items, offset, offset + most)
    return {"total": len(items), "rows": [shown(one) for one in chosen]}


def _subscription(held: SubscriptionState) -> dict[str, Any]:
    return {
        "filter": held.filter,
        "qos": held.qos,
        "options": held.options,
        "identifier": held.identifier,
        "active": held.active,
        "outstanding": held.outstanding,
        "window": None,
        "queued": len(held.queue or ()),
        "queued_bytes": held.queued_bytes,
        "oldest": _oldest(held),
    }


def _sent(item: tuple[int, InFlight]) -> dict[str, Any]:
    pid, sent = item
    return {
        "pid": pid,
        "qos": sent.flags & QOS_MASK,
        "retain": bool(sent.flags & RETAIN_FLAG),
        "ref": sent.ref,
        "filter": sent.subscription.filter,
        "topic": None,
    }


def _oldest(held: SubscriptionState) -> Position | None:
    return held.queue.oldest() if held.queue is not None else None
