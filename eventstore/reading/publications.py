"""The publications in a record: which messages take effect in it, with their content.

A message at QoS 1, a will, and a recorded message at QoS 0 take effect where they were published;
any other message at QoS 2 takes effect where its PUBREL was received, perhaps many records later.
Only complete turns count (``eventstore.format.turn_parts``): pass the parts of a turn in order.

A message that was taken over from another log is a publication of the session ``$log/NAME`` here.
Such copies are left out: a reader of all logs gets each message once, from the log in which it was
published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from eventstore.format.events import LOG_SESSION, MessagePublished, Released
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.stored_properties import expiries
from eventstore.log.message_store import Message, StoredMessages

if TYPE_CHECKING:
    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record

_RELEVANT = frozenset({"MessagePublished", "Released"})


@dataclass(slots=True)
class Publications:
    """Messages that one event of a session puts into effect, as columns."""

    session: str
    """The session that published them."""
    qos: int
    retain: bool
    """Whether they were published with RETAIN 1."""
    positions: Sequence[Position]
    """Where each takes effect."""
    refs: Sequence[Position]
    """Where each was published; other than in ``positions`` at QoS 2."""
    topics: Sequence[bytes]
    payloads: Sequence[bytes]
    time_ms: int
    """Time of the record in which they take effect, Unix time in milliseconds."""
    steady_ms: int
    """The same without the jumps of the clock: expiries are compared with it."""
    blocks: Sequence[bytes] = ()
    """Properties of each (MQTT 5); empty when none has any."""
    expires: Sequence[int] = ()
    """Expiry of each in seconds of the steady time, 0: never; empty when none expires."""
    will: bool = False

    @property
    def content(self) -> StoredMessages:
        """The messages alone."""
        size = sum(map(len, self.payloads))
        return StoredMessages(self.refs[0], self.topics, self.payloads, size, self.blocks)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.positions)

    def after(self, through: Position) -> Publications | None:
        """Return those that take effect after a position; None: there are none."""
        return _after(self, through, _PUBLICATION_COLUMNS)


@dataclass(slots=True)
class Releases:
    """Messages at QoS 2 that take effect, of which an earlier event has the content."""

    session: str
    """The session that published them."""
    positions: Sequence[Position]
    refs: Sequence[Position]
    """The messages: where each was published."""
    time_ms: int
    steady_ms: int

    def after(self, through: Position) -> Releases | None:
        """Return those that take effect after a position; None: there are none."""
        return _after(self, through, ("positions", "refs"))


_PUBLICATION_COLUMNS: Final = ("positions", "refs", "topics", "payloads", "blocks", "expires")
_Item = TypeVar("_Item", Publications, Releases)


def _after(item: _Item, through: Position, columns: tuple[str, ...]) -> _Item | None:
    positions = item.positions
    if positions and positions[0] > through:
        return item
    before = sum(at <= through for at in positions)
    if before == len(positions):
        return None
    return replace(item, **{name: getattr(item, name)[before:] for name in columns})


PublicationItem: TypeAlias = Publications | Releases | StoredMessages
"""Messages that take effect, with or without their content; or the content of messages at QoS 2,
which take effect later or never: keep it, and pass it to :func:`with_content` then."""


def publications_in(
    record: Record, wanted: Callable[[str], bool] | None = None
) -> Iterator[PublicationItem]:
    """Yield what takes effect in a record of a complete turn, in order.

    ``wanted`` selects topics. Content of messages at QoS 2, and releases, come for all topics.
    """
    if not any(raw["e"] in _RELEVANT for raw in record.raw_events):
        return
    base = position(record.sequence, 0)
    for index, event in record.events():
        item = _item_of(record, event, base + index, wanted)
        if item is not None:
            yield item


def awaits_release(event: MessagePublished) -> bool:
    """Return whether the messages of an event take effect only with their PUBREL."""
    return event.qos == 2 and not event.will


def publications_of(
    record: Record, event: Event, at: Position, wanted: Callable[[str], bool] | None = None
) -> Iterator[PublicationItem]:
    """Yield what an event of a record puts into effect; ``at`` is its position."""
    item = _item_of(record, event, at, wanted)
    if item is not None:
        yield item


def _item_of(
    record: Record, event: Event, at: Position, wanted: Callable[[str], bool] | None
) -> PublicationItem | None:
    """Return what an event puts into effect; None: nothing."""
    if isinstance(event, MessagePublished):
        if not event.session.startswith(LOG_SESSION):
            return _published(record, event, at, wanted)
    elif isinstance(event, Released) and not event.session.startswith(LOG_SESSION):
        refs = from_runs(event.refs)
        places = range(at, at + len(refs))
        return Releases(event.session, places, refs, record.time_ms, record.steady_ms)
    return None


def _published(
    record: Record,
    event: MessagePublished,
    at: Position,
    wanted: Callable[[str], bool] | None,
) -> Publications | StoredMessages | None:
    """Return the messages of an event, or their content if they wait for PUBREL."""
    waits = awaits_release(event)
    count = event.count
    chosen: Sequence[int] = range(count)
    if wanted is not None and not waits:
        accepted = [wanted(topic) for topic in event.topics]
        if not any(accepted):
            return None
        if not all(accepted):
            chosen = [number for number in chosen if accepted[event.which[number]]]
    names = [topic.encode() for topic in event.topics]
    topics = [names[number] for number in event.which] if event.which else names * count
    payloads, blocks = record.payloads(event), record.blocks(event)
    expires = expiries(blocks, record.steady_ms) if blocks else []
    if waits:
        size = sum(map(len, payloads))
        return StoredMessages(
            *(at, topics, payloads, size, blocks, expires, event.retain, (event.session,))
        )
    places: Sequence[Position] = range(at, at + count)
    if len(chosen) < count:
        places = [at + number for number in chosen]
        topics = [topics[number] for number in chosen]
        payloads = [payloads[number] for number in chosen]
        blocks = [blocks[number] for number in chosen] if blocks else []
        expires = [expires[number] for number in chosen] if expires else []
    return Publications(
        event.session,
        event.qos,
        event.retain,
        places,
        places,
        topics,
        payloads,
        record.time_ms,
        record.steady_ms,
        blocks,
        expires,
        event.will,
    )


def with_content(releases: Releases, messages: Sequence[Message]) -> Iterator[Publications]:
    """Yield released messages with their content, retained ones separate from others.

    ``messages`` are those of ``releases.refs``, in that order.
    """
    begin = 0
    for stop in range(1, len(messages) + 1):
        if stop < len(messages) and messages[stop].retain == messages[begin].retain:
            continue
        run = messages[begin:stop]
        blocked = any(message.block for message in run)
        yield Publications(
            releases.session,
            2,
            run[0].retain,
            releases.positions[begin:stop],
            releases.refs[begin:stop],
            [message.topic for message in run],
            [message.payload for message in run],
            releases.time_ms,
            releases.steady_ms,
            [message.block for message in run] if blocked else (),
            [message.expires for message in run] if blocked else (),
        )
        begin = stop


def known_content(
    releases: Releases, find: Callable[[Position], Message | None]
) -> tuple[list[Publications], list[Position]]:
    """Return released messages with their content, and where those take effect that are gone."""
    messages: list[Message] = []
    places: list[tuple[Position, Position]] = []
    missing: list[Position] = []
    for place, ref in zip(releases.positions, releases.refs, strict=True):
        message = find(ref)
        if message is None:
            missing.append(place)
        else:
            places.append((place, ref))
            messages.append(message)
    if missing:
        positions, refs = [place for place, _ in places], [ref for _, ref in places]
        releases = replace(releases, positions=positions, refs=refs)
    return [*with_content(releases, messages)], missing
