"""One copy of each message, where several subscriptions in NATS match its subject.

NATS delivers a message once for each of them, in any order, and with other publishers' messages
between. Whichever copy comes first is taken; each of the other subscriptions then *owes* one like
it, which is left out when it comes. So nothing depends on when exactly the server learnt of a
subscription, or of its end, while messages flow.

Copies are told apart by what they say. A subscription may owe one that never comes, since the
message was before its time; hence debts are written off when a server that has confirmed the
subscription has answered once more.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

    from eventstore.nats import NatsMessage

_MOST = 10_000
"""Copies that may be owed; the oldest are written off first."""


Debt: TypeAlias = tuple[int, bytes]
"""A subscription, and the digest of the message that it owes a copy of."""


class DuplicateFilter:
    """What subscriptions owe, by their numbers."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[Debt, int] = {}

    def __len__(self) -> int:
        """Return how many different messages are owed."""
        return len(self._owed)

    def first(self, sids: Collection[int], message: NatsMessage) -> bool:
        """Say whether a message is the first copy; ``sids`` are the subscriptions that match it."""
        sid, owed = message.sid, self._owed
        if sid not in sids:
            return False
        if len(sids) == 1 and not owed:
            return True
        said = _digest(message)
        debt = owed.pop((sid, said), 0)
        if debt:
            if debt > 1:
                owed[sid, said] = debt - 1
            return False
        for other in sids:
            if other != sid:
                owed[other, said] = owed.get((other, said), 0) + 1
        while len(owed) > _MOST:
            del owed[next(iter(owed))]
        return True

    def of(self, sids: Collection[int]) -> list[Debt]:
        """Return what some subscriptions owe."""
        return [debt for debt in self._owed if debt[0] in sids]

    def write_off(self, debts: Collection[Debt]) -> None:
        """Expect no more what is owed."""
        for debt in debts:
            self._owed.pop(debt, None)

    def clear(self) -> None:
        """Expect nothing more."""
        self._owed.clear()


def _digest(message: NatsMessage) -> bytes:
    """Return 16 bytes that stand for all that a message says: it may be large."""
    _, subject, reply, headers, payload = message
    lengths = b"%d %d %d " % (len(subject), len(reply), len(headers))
    digest = blake2b(lengths, digest_size=16)
    for part in (subject, reply, headers, payload):
        digest.update(part)
    return digest.digest()
