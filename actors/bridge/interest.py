"""Subscriptions in NATS for the filters of MQTT clients: one set for each distinct filter.

The router reports every subscription that begins or ends. Subscriptions to requests are reported
only while their client is connected: offline clients cannot answer, and NATS then replies that
there is no responder. The sessions with the same filter are counted. If the subjects of several
filters match a message, NATS delivers it once for each; :class:`DuplicateFilter` keeps one
of the copies. A subscription that ends counts until the server has confirmed its end, since until
then messages may arrive for it. One that the server refuses does not count until the next
connection, which tries again.

With several logs (:mod:`actors.bridge`) the filters of other logs count as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from actors.limits.bridge_options import REQUESTS, BridgeOptions
from eventstore.format.events import NATS_SESSION
from eventstore.partitions import partition_of
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import split_levels
from protocol.nats.headers import encode_value

if TYPE_CHECKING:
    from actors.bridge.bridge import OrderedLink
    from eventstore.nats.batch_transport import NatsMessage

# Messages from NATS that are not new.
#
# DuplicateFilter finds copies of messages whose subject matches several subscriptions. NATS
# delivers a message once for each of them, in any order, with other messages in between. The first
# copy is accepted; each of the other subscriptions then *owes* an equal one, which is dropped when
# it arrives. So the exact time at which the server processes a subscription, or its end, does not
# matter. Copies are compared by content.
#
# A subscription may owe a copy that never arrives, because the message was published before the
# subscription began; therefore debts are cleared when a server that has confirmed the subscription
# has answered once more.
#
# OwnMessages finds messages that another node of the cluster sent for this log. NATS does not send
# a message back on the connection that it came from, but a node that was suspended while it led may
# send some when its successor already listens. Subscribers get these from the log.

_MAX = 10_000
"""Maximum number of owed copies; the oldest are cleared first."""


ExpectedCopy: TypeAlias = tuple[int, bytes]
"""A subscription, and the digest of the message whose copy it owes."""


class DuplicateFilter:
    """Owed copies, by number of the subscription."""

    __slots__ = ("_expected",)

    def __init__(self) -> None:
        self._expected: dict[ExpectedCopy, int] = {}

    def __len__(self) -> int:
        """Return the number of different messages owed."""
        return len(self._expected)

    def first(self, sids: Collection[int], message: NatsMessage) -> bool:
        """Return whether a message is the first copy; ``sids`` are the matching subscriptions."""
        sid, expected = message.sid, self._expected
        if sid not in sids:
            return False
        if len(sids) == 1 and not expected:
            return True
        digest = _digest(message)
        debt = expected.pop((sid, digest), 0)
        if debt:
            if debt > 1:
                expected[sid, digest] = debt - 1
            return False
        for other in sids:
            if other != sid:
                expected[other, digest] = expected.get((other, digest), 0) + 1
        while len(expected) > _MAX:
            del expected[next(iter(expected))]
        return True

    def of(self, sids: Collection[int]) -> list[ExpectedCopy]:
        """Return the copies that these subscriptions owe."""
        return [debt for debt in self._expected if debt[0] in sids]

    def write_off(self, debts: Collection[ExpectedCopy]) -> None:
        """Clear owed copies."""
        for debt in debts:
            self._expected.pop(debt, None)

    def clear(self) -> None:
        """Expect nothing more."""
        self._expected.clear()


class OwnMessages:
    """Recognises the messages of MQTT clients of one log; ``node`` is its name in headers."""

    __slots__ = ("_line",)

    def __init__(self, node: str) -> None:
        self._line = b"\r\nFoldmq-Node: %b\r\n" % encode_value(node)

    def has(self, headers: bytes, topic: bytes) -> bool:
        """Return whether a node sent a message on a topic for this log.

        If a NATS client publishes a message with copied headers elsewhere, its topic differs.
        """
        return self._line in headers and topic_header(topic.decode()) in headers


def _digest(message: NatsMessage) -> bytes:
    """Return a 16-byte digest of a message, which may be large."""
    _, subject, reply, headers, payload = message
    lengths = b"%d %d %d " % (len(subject), len(reply), len(headers))
    digest = blake2b(lengths, digest_size=16)
    for part in (subject, reply, headers, payload):
        digest.update(part)
    return digest.digest()


_WILD_LEVELS = ("+", "#")


class TopicHomes:
    """Determines which log of ``names`` is the home of a topic; ``own`` is this broker's log.

    Topics with the same first level have the same home, so that most filters concern one log.
    """

    def __init__(self, names: Sequence[str], own: str) -> None:
        self.names = names
        self.own = own
        self._number = names.index(own)
        nodes = b"|".join(re.escape(encode_value(name)) for name in names)
        self._from_brokers = re.compile(rb"\r\nFoldmq-Node: (?:%b)\r\n" % nodes)

    def is_home(self, topic: str) -> bool:
        """Return whether this log records the messages from NATS on a topic."""
        return partition_of(topic.partition("/")[0], len(self.names)) == self._number

    def concerns(self, topic_filter: str) -> bool:
        """Return whether this log is the home of some topics that a filter matches."""
        return topic_filter.partition("/")[0] in _WILD_LEVELS or self.is_home(topic_filter)

    def is_from_broker(self, headers: bytes, topic_header: bytes) -> bool:
        """Return whether one of the brokers sent a message to NATS.

        The logs exchange such messages themselves. ``topic_header`` is :func:`topic_header` of its
        topic: if a NATS client publishes with copied headers elsewhere, the topic differs.
        """
        return topic_header in headers and self._from_brokers.search(headers) is not None


def topic_header(topic: str) -> bytes:
    """Return the header that names the topic of a message from a broker, with its line ends."""
    return b"\r\nFoldmq-Topic: %b\r\n" % encode_value(topic)


_CACHED_SUBJECTS = 65_536
_CACHED_BYTES = 16 * 1024 * 1024


class SubjectInterest(NamedTuple):
    """The subscriptions for a subject."""

    sids: tuple[int, ...]
    """The subscriptions for which messages may arrive."""
    prefix: str
    """The prefix of its users."""
    topic: bytes | None
    """The topic; None: its messages are not for MQTT clients."""
    at_home: bool = True
    """Whether this log records its messages from NATS."""
    header: bytes = b""
    """The header of the topic in messages from brokers, where there are several logs."""


class _NatsSubscription:
    """One subscribed subject, for all filters that need it."""

    __slots__ = ("leaving", "refused", "sid", "users")

    def __init__(self, sid: int) -> None:
        self.sid = sid
        self.users = 1
        self.leaving = False
        self.refused = False
        """Whether the server refused it on the current connection."""


class Interest:
    """Keeps the subscriptions in NATS in sync with those of the MQTT clients."""

    def __init__(self, options: BridgeOptions, prefix_of: Callable[[str], str]) -> None:
        """``prefix_of`` returns the prefix of a session, by its name."""
        self._options = options
        self._prefix_of = prefix_of
        self._link: OrderedLink | None = None
        self._filters: Counter[tuple[str, str]] = Counter()
        """Number of sessions with a filter, by (prefix, filter)."""
        self._prefix_by_subscription: dict[tuple[str, str], str] = {}
        """The prefix under which a session's filter was counted, if users have prefixes."""
        self._serving: set[tuple[str, str]] = set()
        """(session, filter) of connected clients that answer requests."""
        self._held: dict[str, _NatsSubscription] = {}
        self._leaving: dict[int, str] = {}
        """Ended subscriptions not confirmed yet, with their subjects."""
        self._index: FilterTrie[tuple[str, int]] = FilterTrie()
        self._places: dict[bytes, SubjectInterest] = {}
        self._size = 0
        self.copies = DuplicateFilter()
        self._unconfirmed: set[int] = set()
        """Subscriptions that the server may not have yet."""
        self._confirming = False
        self._ending: list[int] = []
        """Ended subscriptions to be confirmed next."""
        self._confirming_ends = False
        self._round = 0
        """Counts connections: a confirmation is valid only for its own connection."""
        self.requests = 0
        """Filters of requests."""
        self._needed: Counter[tuple[str, str]] = Counter()
        """(prefix, filter) -> the number of logs with it for which this one subscribes."""
        self.homes: TopicHomes | None = None
        """The homes of topics; None: there is one log."""
        self.on_change: Callable[[str, bool], None] = _nothing
        """Called with a filter without a prefix when it begins (True) or ends in this log."""

    def __len__(self) -> int:
        """Return the number of distinct filters."""
        return len(self._filters)

    @property
    def subjects(self) -> int:
        """The number of subscriptions in NATS."""
        return sum(not (held.leaving or held.refused) for held in self._held.values())

    def attach(self, link: OrderedLink) -> None:
        """Subscribe to all current filters, and to new ones from now on."""
        self._link = link
        for prefix, topic_filter in self._needed:
            self._subscribe(prefix, topic_filter)

    def detach(self) -> None:
        """End all subscriptions in NATS, and only count filters until ``attach``."""
        link, held, self._link = self._link, self._held, None
        self._begin_round()
        self._held = {}
        self._leaving = {}
        self._index = FilterTrie()
        self._forget()
        if link is not None:
            for subscription in held.values():
                if not subscription.leaving:
                    link.unsubscribe(subscription.sid)

    def clear(self) -> None:
        """Remove everything, as subscriptions will be reported again. Only without a connection."""
        for prefix, topic_filter in self._filters:
            self._release(prefix, topic_filter)
        self._filters.clear()
        self._prefix_by_subscription.clear()
        self._serving.clear()
        self.requests = 0

    def added(self, session: str, topic_filter: str) -> None:
        """Record a subscription that a session did not have.

        One to requests counts once, however often it is recorded.
        """
        if topic_filter.startswith(REQUESTS):
            if (session, topic_filter) in self._serving:
                return
            self._serving.add((session, topic_filter))
        prefix = self._prefix_of(session)
        if prefix:
            self._prefix_by_subscription[session, topic_filter] = prefix
        self._filters[prefix, topic_filter] += 1
        if self._filters[prefix, topic_filter] == 1:
            self.requests += topic_filter.startswith(REQUESTS)
            self._need(prefix, topic_filter)
            if not prefix:
                self.on_change(topic_filter, True)

    def removed(self, session: str, topic_filter: str) -> None:
        """Record the end of a subscription."""
        if topic_filter.startswith(REQUESTS):
            if (session, topic_filter) not in self._serving:
                return
            self._serving.discard((session, topic_filter))
        prefix = (
            self._prefix_by_subscription.pop((session, topic_filter), "")
            if self._prefix_by_subscription
            else ""
        )
        self._filters[prefix, topic_filter] -= 1
        if not self._filters[prefix, topic_filter]:
            del self._filters[prefix, topic_filter]
            self.requests -= topic_filter.startswith(REQUESTS)
            self._release(prefix, topic_filter)
            if not prefix:
                self.on_change(topic_filter, False)

    def own_filters(self) -> list[str]:
        """Return the filters of this log without a prefix."""
        return [topic_filter for prefix, topic_filter in self._filters if not prefix]

    def wanted_elsewhere(self, topic_filter: str) -> None:
        """Record that another log has a filter for which this one subscribes."""
        self._need("", topic_filter)

    def unwanted_elsewhere(self, topic_filter: str) -> None:
        """Record that another log no longer has such a filter."""
        self._release("", topic_filter)

    def _need(self, prefix: str, topic_filter: str) -> None:
        self._needed[prefix, topic_filter] += 1
        if self._needed[prefix, topic_filter] == 1 and self._link is not None:
            self._subscribe(prefix, topic_filter)

    def _release(self, prefix: str, topic_filter: str) -> None:
        self._needed[prefix, topic_filter] -= 1
        if not self._needed[prefix, topic_filter]:
            del self._needed[prefix, topic_filter]
            if self._link is not None:
                self._unsubscribe(prefix, topic_filter)

    def place(self, subject: bytes) -> SubjectInterest:
        """Return the subscriptions for a subject."""
        interest = self._places.get(subject)
        if interest is None:
            interest = self._look_up(subject)
            if len(self._places) >= _CACHED_SUBJECTS or self._size >= _CACHED_BYTES:
                self._forget()
            self._places[subject] = interest
            self._size += 2 * len(subject)
        return interest

    def refused(self, subject: str) -> None:
        """Record that the server refused a subscription: no messages arrive for it."""
        held = self._held.get(subject)
        if held is not None and not held.refused:
            held.refused = True
            self._index.remove(_as_filter(subject), held.sid)
            self.copies.write_off(self.copies.of((held.sid,)))
            self._forget()

    def renewed(self) -> None:
        """Record a new connection, before it can refuse anything."""
        for subject, held in self._held.items():
            if held.refused:
                held.refused = False
                if not held.leaving:
                    self._index.insert(_as_filter(subject), held.sid, (subject, held.sid))
        self._forget()

    def _look_up(self, subject: bytes) -> SubjectInterest:
        try:
            text = subject.decode()
        except UnicodeDecodeError:
            return SubjectInterest((), "", None)
        prefix, topic = self._options.place(text)
        if topic is None or topic.startswith(NATS_SESSION):
            return SubjectInterest((), prefix, None)
        tokens = text.split(".")
        sids = tuple(
            sid
            for pattern, sid in self._index.match(_as_filter(text))
            # As a filter of MQTT "a.>" also matches "a".
            if not (pattern.endswith(".>") and len(pattern.split(".")) > len(tokens))
        )
        homes = self.homes
        if homes is None:
            return SubjectInterest(sids, prefix, topic.encode())
        return SubjectInterest(
            sids, prefix, topic.encode(), homes.is_home(topic), topic_header(topic)
        )

    def _subjects(self, prefix: str, topic_filter: str) -> tuple[str, ...]:
        if topic_filter.startswith(REQUESTS):
            asked = _asked(topic_filter)
            return self._options.rules.subjects(asked, prefix) if asked else ()
        return self._options.rules.subjects(topic_filter, prefix)

    def _subscribe(self, prefix: str, topic_filter: str) -> None:
        link = self._link
        for subject in self._subjects(prefix, topic_filter) if link is not None else ():
            held = self._held.get(subject)
            if held is not None and not held.leaving:
                held.users += 1
                continue
            held = _NatsSubscription(link.subscribe(subject.encode()))  # type: ignore[union-attr]
            self._held[subject] = held
            self._index.insert(_as_filter(subject), held.sid, (subject, held.sid))
            self._forget()
            self._unconfirmed.add(held.sid)
        if self._unconfirmed and not self._confirming:
            self._confirm()

    def _confirm(self) -> None:
        """Clear owed copies of messages older than new subscriptions."""
        new, self._unconfirmed, self._confirming = self._unconfirmed, set(), True

        def confirmed() -> None:
            debts = self.copies.of(new)
            # Copies may still arrive, but none after the next answer of the server.
            self._after_answer(lambda: again(debts))

        def again(debts: list[ExpectedCopy]) -> None:
            self.copies.write_off(debts)
            self._confirming = False
            if self._unconfirmed:
                self._confirm()

        self._after_answer(confirmed)

    def _after_answer(self, work: Callable[[], None]) -> None:
        """Do work when the server has answered, unless the connection is lost before."""
        asked = self._round

        def answered() -> None:
            if asked == self._round:
                work()

        if self._link is not None:
            self._link.fence(answered)

    def _unsubscribe(self, prefix: str, topic_filter: str) -> None:
        for subject in self._subjects(prefix, topic_filter):
            held = self._held[subject]
            held.users -= 1
            if not held.users:
                held.leaving = True
                self._end(subject, held)

    def _end(self, subject: str, held: _NatsSubscription) -> None:
        link = self._link
        if link is not None:
            self._leaving[held.sid] = subject
            link.unsubscribe(held.sid)
            self._ending.append(held.sid)
            if not self._confirming_ends:
                self._confirm_ends()

    def _confirm_ends(self) -> None:
        """Confirm ended subscriptions; those that end meanwhile wait for the next round."""
        ending, self._ending, self._confirming_ends = self._ending, [], True

        def confirmed() -> None:
            self._ended(ending)
            self._confirming_ends = False
            if self._ending:
                self._confirm_ends()

        self._after_answer(confirmed)

    def _ended(self, sids: Collection[int]) -> None:
        for sid in sids:
            subject = self._leaving.pop(sid)
            self._index.remove(_as_filter(subject), sid)
            held = self._held.get(subject)
            if held is not None and held.sid == sid:
                del self._held[subject]
        self.copies.write_off(self.copies.of(set(sids)))
        self._forget()

    def reconnected(self) -> None:
        """Confirm all subscriptions again after a reconnect, which has just sent them."""
        self.disconnected()
        self._unconfirmed.update(held.sid for held in self._held.values())
        if self._unconfirmed:
            self._confirm()

    def disconnected(self) -> None:
        """Drop pending confirmations, which the lost connection cannot deliver."""
        self._begin_round()
        self._ended(list(self._leaving))

    def _begin_round(self) -> None:
        self._round += 1
        self._unconfirmed.clear()
        self._confirming = False
        self._ending = []
        self._confirming_ends = False
        self.copies.clear()

    def _forget(self) -> None:
        self._places = {}
        self._size = 0


def _asked(topic_filter: str) -> str:
    """Return the filter of the requests in ``$nats/request/TOKEN/FILTER``."""
    levels = split_levels(topic_filter)[2:]
    return "#" if levels == ["#"] else "/".join(levels[1:])


def _as_filter(subject: str) -> str:
    """Return a subject, or a pattern, as a name for the trie: its levels are the tokens."""
    return "/".join(_WILDCARDS.get(token, token) for token in subject.replace("/", "\0").split("."))


_WILDCARDS = {"*": "+", ">": "#"}


def _nothing(_topic_filter: str, _begun: bool) -> None:
    """Do nothing."""
