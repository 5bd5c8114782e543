"""Messages from NATS that are not new.

:class:`DuplicateFilter` finds copies of messages whose subject matches several subscriptions. NATS
delivers a message once for each of them, in any order, with other messages in between. The first
copy is accepted; each of the other subscriptions then *owes* an equal one, which is dropped when it
arrives. So the exact time at which the server processes a subscription, or its end, does not
matter. Copies are compared by content.

A subscription may owe a copy that never arrives, because the message was published before the
subscription began; therefore debts are cleared when a server that has confirmed the subscription
has answered once more.

:class:`OwnMessages` finds messages that another node of the cluster sent for this log. NATS does
not send a message back on the connection that it came from, but a node that was suspended while it
led may send some when its successor already listens. Subscribers get these from the log.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from protocol.nats.headers import encode_value

if TYPE_CHECKING:
    from collections.abc import Collection

    from eventstore.nats.batch_transport import NatsMessage

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
        if self._line not in headers:
            return False
        return b"\r\nFoldmq-Topic: %b\r\n" % encode_value(topic.decode()) in headers


def _digest(message: NatsMessage) -> bytes:
    """Return a 16-byte digest of a message, which may be large."""
    _, subject, reply, headers, payload = message
    lengths = b"%d %d %d " % (len(subject), len(reply), len(headers))
    digest = blake2b(lengths, digest_size=16)
    for part in (subject, reply, headers, payload):
        digest.update(part)
    return digest.digest()
