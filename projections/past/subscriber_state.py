"""A session's subscriptions relative to a message: matching, denied and near-miss filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from eventstore.format.event_parsing import Event
from eventstore.format.events import Subscribed, SubscriptionDenied
from eventstore.format.positions import Position, from_runs
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.subscription_options import NO_LOCAL
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import matches, split_levels

if TYPE_CHECKING:
    from projections.state.session import SessionState, SubscriptionState

_ALIKE: Final = 0.8
"""Lowest similarity, from 0 to 1, at which a filter counts as similar to a topic."""
_MAX_COMPARED: Final = 1000
_MAX_ALIKE: Final = 3
_MAX_DENIED: Final = 1000
"""Number of a session's denied filters that are kept with its state, the latest ones."""


class Recorded(Protocol):
    """What the log records at a position, at a time (Unix, milliseconds)."""

    @property
    def at(self) -> Position: ...  # noqa: D102

    @property
    def time_ms(self) -> int: ...  # noqa: D102


class DeniedFilter(NamedTuple):
    """A topic filter that a session requested and was not granted."""

    filter: str
    code: int
    """Reason code of the SUBACK."""
    at: Position
    time_ms: int


class DeniedFilters:
    """The filters that a session was denied and not granted since."""

    def __init__(self, saved: Iterable[Sequence[Any]] = ()) -> None:
        """Begin with the values of some :class:`DeniedFilter`."""
        self._denied = {values[0]: DeniedFilter(*values) for values in saved}

    def take(self, event: Event, at: Position, time_ms: int) -> None:
        """Process an event of the session."""
        if isinstance(event, SubscriptionDenied):
            for name, code in zip(event.filters, from_runs(event.reasons), strict=True):
                self._denied.pop(name, None)
                self._denied[name] = DeniedFilter(name, code, at, time_ms)
            while len(self._denied) > _MAX_DENIED:
                del self._denied[next(iter(self._denied))]
        elif isinstance(event, Subscribed):
            for name, _ in event.filters:
                self._denied.pop(name, None)

    def filters(self) -> list[DeniedFilter]:
        """Return them, the latest last."""
        return list(self._denied.values())


class EarlierSession(NamedTuple):
    """The last session of a client that had none when a message took effect."""

    at: Position
    time_ms: int
    """Where and when it ended."""
    reason: str
    closed: bool
    """Whether it ended with its connection; otherwise it ended later."""
    filters: Sequence[str]
    """Its subscriptions that match the topic."""


class SubscriptionChange(NamedTuple):
    """A subscription that began or ended near a message, but did not exist at that time."""

    filter: str
    at: Position
    time_ms: int


class UnreadDrops(NamedTuple):
    """QoS 0 deliveries dropped when a message took effect; the log does not record which messages.

    Their reason is ``slow_reader``.
    """

    at: Position
    """Position of the last of these events."""
    time_ms: int
    dropped: int
    messages: int
    """Number of messages for the session that the log records in that turn, on the same topic if
    the drops name only that; 0: in another turn."""
    limits: Mapping[str, Any] | None
    """The limits at that time, by the names of their settings; None: not recorded."""


class ReadMark(NamedTuple):
    """The step in which a replay passed a message; the log has only counts of messages."""

    at: Position
    time_ms: int
    sent: int
    left_out: Mapping[str, int]
    """Number of matching messages that were not sent, by the reason."""
    unread: bool
    """Whether the message had been cut off before it was read."""


class ReplayPast(NamedTuple):
    """What a replay of the chosen session did with the message."""

    filter: str
    through: Position
    """How far it has read at the end of the log; -1: not at all."""
    state: str
    """As in ``ReplayReached``."""
    never: str
    """before: it begins behind the message; after: it ends before it; last: the message may not be
    the last of its topic; empty: it reads the message."""
    read: ReadMark | None
    """None: it has not read the message, or the log does not show it."""


class SubscriberState(NamedTuple):
    """The subscriptions of the chosen session at the time the message took effect."""

    known: bool
    """Whether the session existed."""
    connected: bool
    filters: list[tuple[str, int]]
    """Its subscriptions that match the topic, with the granted QoS."""
    shared: Sequence[str] = ()
    """The matching shared subscriptions, as $share/NAME/FILTER, that it is a member of."""
    no_local: Sequence[str] = ()
    """Its matching filters that exclude the session's own messages (No Local, MQTT 5)."""
    packet_maximum: int = 0
    """Bytes of the largest packet that its client accepts; 0: any."""
    denied: Sequence[DeniedFilter] = ()
    """Matching filters that it was denied before, and not granted since."""
    alike: Sequence[str] = ()
    """Its filters that resemble the topic but do not match; empty if any filter matches."""
    seen: bool | None = None
    """Whether the log has any event of the session; None: not looked up."""
    earlier: EarlierSession | None = None
    unread: UnreadDrops | None = None
    ended: SubscriptionChange | None = None
    """Its last matching subscription that ended shortly before the message."""
    begun: SubscriptionChange | None = None
    """Its first matching subscription that began shortly after the message."""
    replays: Sequence[ReplayPast] = ()
    """Its replays that match the topic, as of the end of the log."""


def describe_subscriber(
    state: SessionState | None, topic: str, denied: Iterable[DeniedFilter], *, own: bool
) -> SubscriberState:
    """Return the subscriptions of a session relative to a message; None: there is no session.

    ``own`` says that the session published the message. ``denied`` are all filters that it was
    denied.
    """
    refused = [denial for denial in denied if matches(split_share(denial.filter)[1], topic)]
    if state is None:
        return SubscriberState(False, False, [], denied=refused)
    trie: FilterTrie[SubscriptionState] = FilterTrie()
    active = [held for held in state.active() if held.replay is None]
    for held in active:
        trie.insert(split_share(held.filter)[1], held.filter, held)
    matching = sorted(trie.match(topic), key=attrgetter("filter"))
    single = [held for held in matching if not held.filter.startswith(SHARE)]
    return SubscriberState(
        True,
        state.connected,
        [(held.filter, held.qos) for held in single],
        [held.filter for held in matching if held.filter.startswith(SHARE)],
        [held.filter for held in single if held.options & NO_LOCAL] if own else [],
        state.packet_maximum,
        refused,
        [] if matching else filters_alike(topic, [held.filter for held in active]),
    )


def filters_alike(topic: str, filters: Sequence[str]) -> list[str]:
    """Return filters that do not match a topic but resemble it, the most similar first.

    A wildcard resembles any level. Of many filters only the first ones are compared.
    """
    rated = []
    for topic_filter in filters[:_MAX_COMPARED]:
        rate = _similarity(topic, split_share(topic_filter)[1])
        if rate >= _ALIKE:
            rated.append((-rate, topic_filter))
    return [topic_filter for _, topic_filter in sorted(rated)[:_MAX_ALIKE]]


def _similarity(topic: str, topic_filter: str) -> float:
    """Return the similarity of a filter and a topic, from 0 to 1."""
    levels = split_levels(topic)
    filled = []
    for number, level in enumerate(split_levels(topic_filter)):
        if level == "#":
            filled += levels[number:]
            break
        filled.append(levels[number] if level == "+" and number < len(levels) else level)
    name, other = "/".join(levels).strip("/ "), "/".join(filled).strip("/ ")
    if name.casefold() == other.casefold():
        return 1.0
    return SequenceMatcher(None, name, other, autojunk=False).ratio()
