"""Broker statistics for MQTT clients: the topics ``$SYS/broker/...``.

Names and payloads are the same as in Mosquitto. The values are like retained messages: a subscriber
gets them immediately, and changes every ``sys_interval`` seconds. They are sent at QoS 0 and are
not in the log. Without subscribers only the averages (``load``) are updated. Sessions are counted,
and subscribers served, a few at a time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import starmap
from math import exp
from typing import NamedTuple

from actors.access.rules import TopicAcl
from actors.inspection.inspector import count_outstanding
from actors.routing.subscriber import Subscriber
from actors.session.node_context import NodeContext
from actors.session.session_messages import Batch
from actors.session.subscription_actor import enqueue
from projections.state.session_table import OutstandingTotals
from protocol.mqtt.topic_trie import TopicTrie

ROOT = "$SYS/broker/"
_MINUTE = 60.0
_SPANS = (("1min", _MINUTE), ("5min", 5 * _MINUTE), ("15min", 15 * _MINUTE))
"""Seconds of each moving average."""
_COUNTED_AT_ONCE = 200
"""Sessions counted at a time."""
_FOUND_AT_ONCE, _NOTIFIED_AT_ONCE = 1024, 256
"""Number of subscriptions examined, and of subscribers served, at a time."""
_PAUSE = 0.002
"""Seconds between two steps."""


class Counts(NamedTuple):
    """Counters with moving averages; the fields are the names under ``load``, with __ for /."""

    messages__received: int
    messages__sent: int
    publish__dropped: int
    publish__received: int
    publish__sent: int
    bytes__received: int
    bytes__sent: int
    sockets: int
    connections: int


_LOADS = [field.replace("__", "/") for field in Counts._fields]


class Load:
    """Moving averages of the counters, per minute."""

    __slots__ = ("_at", "_averages", "_last")

    def __init__(self) -> None:
        self._at: float | None = None
        self._last: tuple[int, ...] = ()
        self._averages = [[0.0] * len(_SPANS) for _ in _LOADS]

    def sample(self, now: float, counts: Counts) -> None:
        """Record the counters at a time, in seconds."""
        previous, self._last = self._last, counts
        at, self._at = self._at, now
        if at is None or now <= at:
            return
        weights = [exp((at - now) / span) for _, span in _SPANS]
        for averages, before, count in zip(self._averages, previous, counts, strict=True):
            rate = (count - before) * _MINUTE / (now - at)
            for number, weight in enumerate(weights):
                averages[number] = rate + weight * (averages[number] - rate)

    def values(self) -> Iterable[tuple[str, str]]:
        """Yield topics below :data:`ROOT` and their values."""
        for name, averages in zip(_LOADS, self._averages, strict=True):
            for (span, _), average in zip(_SPANS, averages, strict=True):
                yield f"load/{name}/{span}", f"{average:.2f}"


class SysTopicTree:
    """Publishes the ``$SYS`` topics to their subscribers."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._load = Load()
        self._published: dict[str, bytes] = {}
        """Values sent to subscribers; empty while there are none."""
        self._topics: TopicTrie[str] = TopicTrie()
        self._life = 0
        """Replaced whenever the interval changes."""
        self._interval = 0.0
        self._totals = OutstandingTotals()
        """Totals over all sessions, as last counted."""
        self._read = self._values
        """Returns the values to publish when all sessions are counted."""
        self._steps: Iterator[None] | None = None
        """The rest of an update: sessions to count, then values to send; None: it is done."""
        self._sending = False
        """Whether that update has counted all sessions."""

    def begin(self) -> None:
        """Publish from now on every ``sys_interval`` seconds; 0 stops it."""
        interval = self._node.options.sys_interval
        if interval == self._interval:
            return
        self._interval = interval
        self._life += 1
        self._published = {}
        self._steps = None
        if interval:
            self._sample()
            self._arm(self._life)

    def retained(self, topic_filter: str, acl: TopicAcl | None = None, /) -> Batch | None:
        """Return the messages that a new subscription gets immediately, or None.

        ``acl`` contains the topics that the client may read; None: all.
        """
        if not self._interval:
            return None
        if not self._published:
            self._published = self._values()
            self._count(self._stored)
        topics = list(self._topics.match(topic_filter))
        if acl is not None:
            topics = [topic for topic in topics if acl.may_read(topic)]
        return self._batch(topics, retain=True) if topics else None

    def _arm(self, life: int) -> None:
        self._node.timers.after(self._interval, partial(self._update, life))

    def _update(self, life: int) -> None:
        if life != self._life:
            return
        self._arm(life)
        self._sample()
        if self._steps is not None and self._sending:
            return  # the next values follow when these have been sent
        if self._node.router.system:
            self._count(self._values)
        else:
            self._published = {}

    def _count(self, read: Callable[[], dict[str, bytes]]) -> None:
        """Count the totals over sessions, then publish the changed values of ``read``."""
        self._read = read
        if self._steps is None:
            self._steps, self._sending = self._update_steps(), False
            self._node.timers.after(_PAUSE, partial(self._continue, self._life))

    def _continue(self, life: int) -> None:
        if life != self._life or self._steps is None:
            return
        for _ in self._steps:
            self._node.timers.after(_PAUSE, partial(self._continue, life))
            return
        self._steps = None

    def _update_steps(self) -> Generator[None, None, None]:
        sessions = self._node.state.sessions
        self._totals = yield from count_outstanding(sessions, _COUNTED_AT_ONCE)
        self._sending = True
        before = self._published
        changed = {topic: new for topic, new in self._read().items() if before.get(topic) != new}
        before.update(changed)
        yield from self._send_steps([*changed])

    def _send_steps(self, topics: list[str]) -> Iterator[None]:
        """Find the subscribers of each topic, then send each of them its topics together."""
        node = self._node
        topics_of: dict[Subscriber, int] = {}
        """Subscriber -> the topics that it gets, as bits."""
        for number, topic in enumerate(topics):
            served: set[str] = set()
            for count, target in enumerate(node.router.indexed(topic), 1):
                if (
                    isinstance(target, Subscriber)
                    and target.session not in served
                    and target.is_receiver(topic)
                ):
                    served.add(target.session)
                    topics_of[target] = topics_of.get(target, 0) | 1 << number
                if count % _FOUND_AT_ONCE == 0:
                    yield None
        batches: dict[int, Batch] = {}
        for count, (target, bits) in enumerate(topics_of.items(), 1):
            batch = batches.get(bits)
            if batch is None:
                chosen = [topic for number, topic in enumerate(topics) if bits >> number & 1]
                batch = batches[bits] = self._batch(chosen, retain=False)
            if target.actor is not None and not target.actor.stopped:
                enqueue(target.actor, batch, target)
            if count % _NOTIFIED_AT_ONCE == 0:
                yield None

    def _batch(self, topics: list[str], *, retain: bool) -> Batch:
        payloads = [self._published[topic] for topic in topics]
        return Batch(0, [topic.encode() for topic in topics], payloads, (), retain=retain)

    def _sample(self) -> None:
        node = self._node
        counters = node.counters
        counts = Counts(
            counters.packets_in,
            counters.packets_out,
            node.dropped.total(),
            sum(counters.received),
            sum(counters.sent),
            counters.bytes_in,
            counters.bytes_out,
            counters.accepted,
            counters.connects,
        )
        self._load.sample(node.clock.monotonic(), counts)

    def _values(self) -> dict[str, bytes]:
        """Return all topics and their payloads."""
        node, counters = self._node, self._node.counters
        sessions, connected = len(node.state.sessions), node.directory.attached
        uptime = (node.clock.time_ms() - counters.started_ms) // 1000
        values = {
            "version": f"foldmq version {node.software}",
            "uptime": f"{uptime} seconds",
            "clients/total": sessions,
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": sessions - connected,
            "clients/inactive": sessions - connected,
            "clients/maximum": counters.most_clients,
            "clients/expired": counters.expired,
            "messages/received": counters.packets_in,
            "messages/sent": counters.packets_out,
            "publish/messages/received": sum(counters.received),
            "publish/messages/sent": sum(counters.sent),
            "publish/messages/dropped": node.dropped.total(),
            "publish/bytes/received": counters.publish_bytes_in,
            "publish/bytes/sent": counters.publish_bytes_out,
            "bytes/received": counters.bytes_in,
            "bytes/sent": counters.bytes_out,
            "subscriptions/count": node.router.subscriptions,
            "shared_subscriptions/count": len(node.router.groups),
            "retained messages/count": len(node.state.retained),
        }
        resident, peak = node.memory()
        values |= {"heap/current": resident, "heap/maximum": peak}
        values.update(self._load.values())
        payloads = dict(starmap(_payload, values.items())) | self._stored()
        if not len(self._topics):
            for topic in payloads:
                self._topics.set(topic, topic)
        return payloads

    def _stored(self) -> dict[str, bytes]:
        """Return the topics and payloads of the totals over sessions."""
        retained, totals = self._node.state.retained, self._totals
        count = len(retained) + totals.queued
        values = {
            "messages/stored": count,
            "store/messages/count": count,
            "store/messages/bytes": retained.size + totals.queued_bytes,
        }
        return dict(starmap(_payload, values.items()))


def _payload(name: str, value: str | int) -> tuple[str, bytes]:
    return ROOT + name, str(value).encode()
