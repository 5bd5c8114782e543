"""The account of a run: promises to clients, deliveries, and violations.

Time in the account is a counter that rises with each action and observation of a client. A message
takes effect at some time between its first transmission and its acknowledgement; a subscription
begins between SUBSCRIBE and SUBACK. The account requires or forbids only what holds for every one
of these times.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

NEVER = 1 << 62


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic: section 4.7, written down a second time."""
    levels, names = topic_filter.split("/"), topic.split("/")
    for level, name in itertools.zip_longest(levels, names):
        if level == "#":
            return True
        if level != name and (level != "+" or name is None):
            return False
    return True


@dataclass(slots=True)
class Message:
    """One application message, or will, and what its publisher knows of it."""

    publisher: str
    payload: bytes
    """Names the message; empty if it clears a retained one."""
    topic: str
    qos: int
    retain: bool
    number: int
    sent: int
    """When it was first transmitted; of a will: its CONNECT."""
    acked: int = NEVER
    """When PUBACK or PUBCOMP came; of a will: when it was sure that it must be published."""
    transmissions: int = 1
    released: bool = False
    """PUBREC came."""
    will: bool = False
    forbidden: bool = False
    """A will that must not be published: refused with its CONNECT, or cancelled for certain."""


@dataclass(slots=True)
class Period:
    """One SUBSCRIBE of a filter, until something else may hold."""

    filter: str
    qos: int
    asked: int
    granted: int = NEVER
    """When SUBACK came."""
    ending: int = NEVER
    """When it may have begun to end."""
    ended: int = NEVER
    """When it had ended for certain."""
    successor: Period | None = None
    """The SUBSCRIBE of the same filter that took its place."""
    before: Period | None = None
    """The one whose place it took."""

    def chain(self) -> Iterator[Period]:
        """Yield this period and those that took its place."""
        period: Period | None = self
        while period is not None:
            yield period
            period = period.successor

    @property
    def lasts(self) -> bool:
        """True if the filter was subscribed to until the end of the run."""
        *_, last = self.chain()
        return last.ending == NEVER


@dataclass(slots=True)
class Arrival:
    """A PUBLISH that a client received."""

    at: int
    topic: str
    payload: bytes
    qos: int
    packet_id: int | None
    dup: bool
    retain: bool
    taken: int | None
    """The client passed it on: the number of times it had begun with a new memory by then. None:
    its memory of QoS 2 says that it had this one."""


@dataclass(slots=True)
class Receiver:
    """What one client identifier subscribed to and got."""

    periods: list[Period] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    def current(self, topic_filter: str) -> Period | None:
        """Return the latest period of a filter that may still hold."""
        for period in reversed(self.periods):
            if period.filter == topic_filter and period.ended == NEVER:
                return period if period.successor is None else None
        return None

    def holds(self, topic_filter: str) -> bool:
        """Return whether a filter is subscribed to for certain, or is about to be."""
        period = self.current(topic_filter)
        return period is not None and period.ending == NEVER


class Account:
    """Everything that the clients of a run say."""

    def __init__(self) -> None:
        self._time = 0
        self.late = False
        """What is retained when a SUBSCRIBE comes may arrive as a new message: the broker of the
        subscriber had not taken it from another log yet."""
        self.messages: dict[bytes, Message] = {}
        """By payload."""
        self.retained: dict[str, list[Message]] = defaultdict(list)
        """By topic, in the order of publication; those that clear it too."""
        self.receivers: dict[str, Receiver] = defaultdict(Receiver)

    def now(self) -> int:
        """Return the next moment."""
        self._time += 1
        return self._time

    def sent(self, message: Message) -> None:
        """A message was transmitted for the first time, or a will left with a CONNECT."""
        if message.payload:
            self.messages[message.payload] = message
        if message.retain:
            self.retained[message.topic].append(message)

    # Subscriptions.

    def subscribing(self, name: str, filters: Iterable[tuple[str, int]]) -> list[Period]:
        """A SUBSCRIBE was sent; return the periods that its SUBACK grants."""
        receiver, now = self.receivers[name], self.now()
        found = []
        for topic_filter, qos in filters:
            before = receiver.current(topic_filter)
            period = Period(topic_filter, qos, now)
            if before is not None and before.ending == NEVER:
                before.ending, before.successor, period.before = now, period, before
            receiver.periods.append(period)
            found.append(period)
        return found

    def subscribed(self, periods: list[Period]) -> None:
        """Its SUBACK came."""
        now = self.now()
        for period in periods:
            period.granted = min(period.granted, now)
            if period.before is not None:
                period.before.ended = min(period.before.ended, now)

    def unsubscribing(self, name: str, filters: Iterable[str]) -> list[Period]:
        """An UNSUBSCRIBE was sent; return the periods that its UNSUBACK ends."""
        now, chosen = self.now(), set(filters)
        found = [period for period in self.receivers[name].periods if period.filter in chosen]
        self._ending(found, now)
        return found

    def unsubscribed(self, periods: list[Period]) -> None:
        """Its UNSUBACK came."""
        now = self.now()
        for period in periods:
            period.ended = min(period.ended, now)

    def session_ending(self, name: str) -> None:
        """From now on the session may be gone."""
        self._ending(self.receivers[name].periods, self.now())

    def session_gone(self, name: str) -> None:
        """The session, if there was one, is gone."""
        now = self.now()
        self._ending(self.receivers[name].periods, now)
        for period in self.receivers[name].periods:
            period.ended = min(period.ended, now)

    def _ending(self, periods: Iterable[Period], now: int) -> None:
        for period in periods:
            if period.successor is None:
                period.ending = min(period.ending, now)

    # Judging.

    def check(self, dropped: dict[str, set[bytes]]) -> None:
        """Raise AssertionError for the first promise that was broken.

        ``dropped`` are the messages that the log says were dropped, by client identifier.
        """
        for name, receiver in self.receivers.items():
            by_message: dict[bytes, list[Arrival]] = defaultdict(list)
            for arrival in receiver.arrivals:
                by_message[arrival.payload].append(arrival)
            for payload, arrivals in by_message.items():
                if payload:
                    self._check_arrivals(name, receiver, self.messages.get(payload), arrivals)
            self._check_order(name, receiver, dropped.get(name, set()))
            excused = dropped.get(name, set())
            self._check_missing(name, receiver, excused)
            self._check_replay(name, receiver, by_message, excused)

    def _check_arrivals(
        self, name: str, receiver: Receiver, message: Message | None, arrivals: list[Arrival]
    ) -> None:
        assert message is not None, f"{name}: never sent: {arrivals}"
        where = f"{name}: {message}: {arrivals}"
        assert all(arrival.topic == message.topic for arrival in arrivals), where
        assert not message.forbidden, f"forbidden will: {where}"
        assert all(message.sent < arrival.at for arrival in arrivals), where
        live = [arrival for arrival in arrivals if not arrival.retain]
        assert message.retain or len(live) == len(arrivals), f"RETAIN: {where}"
        periods = [period for period in receiver.periods if matches(period.filter, message.topic)]
        for arrival in live:
            self._check_qos(where, message, periods, arrival)
        # A PUBLISH at QoS 1 that is sent again may become another message.
        most = message.transmissions if message.qos == 1 and not message.will else 1
        assert sum(not arrival.dup for arrival in live) <= most, f"again without DUP: {where}"
        identifiers = {one.packet_id for one in live if one.packet_id is not None}
        assert len(identifiers) <= most, f"another packet identifier: {where}"
        taken = [arrival.taken for arrival in live if arrival.taken is not None]
        # A client that loses a session that the broker still has gets QoS 2 messages again.
        if message.qos != 1 and any(arrival.qos != 1 for arrival in live):
            assert len(taken) == len(set(taken)), f"more than once: {where}"

    def _check_qos(
        self, where: str, message: Message, periods: list[Period], arrival: Arrival
    ) -> None:
        possible = [
            period
            for period in periods
            if period.asked < arrival.at and period.ended > message.sent
        ]
        assert possible, f"not subscribed: {where}"
        found = {min(one.qos, message.qos) for one in possible}
        assert arrival.qos in found, f"QoS {arrival.qos}, not {found}: {where}"
        sure = [
            min(one.qos, message.qos)
            for one in possible
            if one.granted < message.sent and one.ending > arrival.at
        ]
        assert arrival.qos >= max(sure, default=0), f"QoS below the granted one: {where}"

    def _check_order(self, name: str, receiver: Receiver, dropped: set[bytes]) -> None:
        """First arrivals of a publisher's messages on a topic come in their order."""
        last: dict[tuple[str, str, bool], Message] = {}
        seen: set[bytes] = set()
        for arrival in receiver.arrivals:
            message = self.messages.get(arrival.payload)
            if message is None or message.will or arrival.retain or arrival.payload in seen:
                continue
            seen.add(arrival.payload)
            # QoS 0 may overtake what waits for acknowledgements.
            stream = (message.publisher, message.topic, arrival.qos > 0)
            before = last.get(stream)
            if before is None or before.number < message.number:
                last[stream] = message
                continue
            # A PUBLISH at QoS 1 that was sent again may have come too early the first time.
            again = message.qos == 1 and message.transmissions > 1
            sure = arrival.qos and any(
                period.granted < message.sent
                and period.lasts
                and all(later.qos for later in period.chain())  # at QoS 0 the first one may be lost
                and matches(period.filter, message.topic)
                for period in receiver.periods
            )
            assert again, f"{name}: order: {message} after {before}"
            assert not sure or message.payload in dropped, f"{name}: order: {message}"

    def _check_missing(self, name: str, receiver: Receiver, dropped: set[bytes]) -> None:
        arrived = {arrival.payload for arrival in receiver.arrivals if not arrival.retain}
        lasting = [
            period
            for period in receiver.periods
            if period.granted < NEVER
            and period.lasts
            and all(later.qos for later in period.chain())
        ]
        for message in self.messages.values():
            if message.acked == NEVER or not message.qos or message.payload in arrived:
                continue
            for period in lasting:
                if period.granted < message.sent and matches(period.filter, message.topic):
                    assert message.payload in dropped, f"{name}: lost: {message} for {period}"

    def _check_replay(
        self,
        name: str,
        receiver: Receiver,
        arrived: dict[bytes, list[Arrival]],
        dropped: set[bytes],
    ) -> None:
        """What was retained for certain when a SUBSCRIBE came is sent [MQTT-3.3.1-6]."""
        for period in receiver.periods:
            if period.granted == NEVER or not period.qos or not period.lasts:
                continue
            for topic, messages in self.retained.items():
                before = [message for message in messages if message.sent < period.granted]
                if not before or not matches(period.filter, topic):
                    continue
                message = before[-1]
                if message.acked > period.asked or message.will or not message.qos:
                    continue
                found = any(
                    (arrival.retain or self.late) and arrival.at > period.asked
                    for arrival in arrived.get(message.payload, ())
                )
                assert found or not message.payload or message.payload in dropped, (
                    f"{name}: not replayed: {message} for {period}"
                )

    def check_retained(self, kept: dict[str, bytes]) -> None:
        """The retained message is the last acknowledged one of its topic, or a later one."""
        for topic in kept:
            assert topic in self.retained, f"{topic} is retained"
        for topic, messages in self.retained.items():
            acked = [at for at, one in enumerate(messages) if one.acked < NEVER]
            allowed = {message.payload for message in messages[acked[-1] if acked else 0 :]}
            if not acked:
                allowed.add(b"")
            found = kept.get(topic, b"")
            assert found in allowed, f"{topic}: {found!r} is retained, not one of {allowed}"
