"""What ``foldmq why`` says of a topic on which the log records no message."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from cli.common import text
from eventstore.format import SubscriptionDenied, TurnAssembler, from_runs, sequence_of
from eventstore.index import BadIndex
from eventstore.reading import LogPoint
from projections.replay import EventFilter, EventReader, reason_text
from protocol.mqtt import ReasonCode, matches
from protocol.mqtt5 import split_share

if TYPE_CHECKING:
    from eventstore.format import Position
    from eventstore.reading import LogSource

_MOST_TOPICS: Final = 20_000
"""Maximum topics that are compared with the one that was asked for."""
_MOST_ALIKE: Final = 3
_ALIKE: Final = 0.75


async def explain_no_message(
    source: LogSource, topic: str, client: str | None, until: Position | None
) -> str:
    """Return what may explain that there is no message on a topic, for the end of a sentence.

    ``topic`` may be a filter; ``until`` is the position up to which the log is read. Raises as
    ``LogSource.records``.
    """
    last = source.last if until is None else min(source.last, sequence_of(until))
    found = ["messages of QoS 0 are recorded only if they are retained"]
    if client is not None:
        found += [
            f"{text.name(client)} was denied {text.name(name)}: {denial_text(code)}"
            for name, code in (await _denied(source, topic, client, last)).items()
        ]
    if not _has_wildcard(topic):
        alike = get_close_matches(topic, await _topics(source, last), _MOST_ALIKE, _ALIKE)
        if alike:
            found.append(f"there are messages on {', '.join(map(text.name, alike))}")
    return "; ".join(found)


def _has_wildcard(topic: str) -> bool:
    return "+" in topic or "#" in topic


async def _denied(source: LogSource, topic: str, client: str, last: int) -> dict[str, int]:
    """Return the filters that match a topic and were denied to a client, with the last reason."""
    found: dict[str, int] = {}
    reader = EventReader(source, EventFilter((SubscriptionDenied,), client))
    async for entry in reader.entries(
        LogPoint(source.begin, 0), LogPoint(last), TurnAssembler(anywhere=True), ended=True
    ):
        event = entry.event
        if isinstance(event, SubscriptionDenied):
            for name, code in zip(event.filters, from_runs(event.reasons), strict=False):
                plain = split_share(name)[1]
                if plain == topic or (not _has_wildcard(topic) and matches(plain, topic)):
                    found[name] = code
    return found


async def _topics(source: LogSource, last: int) -> list[str]:
    """Return topics of messages, a bounded number, from the index where there is one."""
    found: dict[str, None] = {}

    def note(topic: str) -> bool:
        if len(found) < _MOST_TOPICS:
            found[topic] = None
        return False

    first = source.begin
    if source.index is not None:
        try:
            source.index.topics("", note, last=last)
            first = source.index.last + 1
        except BadIndex:
            found.clear()
    if first <= last:
        async for record in source.records(first, last):
            for raw in record.raw_events:
                if raw["e"] == "MessagePublished":
                    for topic in raw["topics"]:
                        note(topic)
    return list(found)


def denial_text(code: int) -> str:
    """Return why a subscription was denied, from its reason code."""
    return _DENIALS.get(code) or reason_text(code)


_DENIALS: dict[int, str] = {
    ReasonCode.NOT_AUTHORIZED: "the permissions do not let it subscribe to that (permissions)",
    ReasonCode.QUOTA_EXCEEDED: "it has as many as it may (max_subscriptions, max_wildcards, "
    "max_wildcard_patterns, max_shared_members, max_subscriptions_total)",
    ReasonCode.TOPIC_FILTER_INVALID: "the filter is not valid here",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "it may not share subscriptions "
    "(shared_for_mqtt3)",
}
