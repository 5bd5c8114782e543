"""Requests from NATS that MQTT clients may answer.

MQTT 3.1.1 has no place for a reply address in a message. So a request on a subject is delivered
on the topic ``$nats/request/TOKEN/TOPIC`` to whoever subscribed to ``$nats/request/+/FILTER``, and
what is published on ``$nats/reply/TOKEN`` is the answer. A token is good for a minute and cannot
be guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIFE = 60.0
"""Seconds for which a request can be answered."""
_MOST = 16_384
"""Requests that are remembered; the oldest are forgotten first."""
LONGEST = 1024
"""Bytes of a reply subject that is remembered."""


class Replies:
    """Remembers where answers are to go."""

    def __init__(self, monotonic: Callable[[], float], token: Callable[[], str]) -> None:
        self._monotonic = monotonic
        self._make_token = token
        self._requests: dict[str, tuple[float, bytes]] = {}

    def expect(self, reply: bytes) -> str:
        """Remember a reply subject; return the token that stands for it."""
        now = self._monotonic()
        requests = self._requests
        while requests:
            oldest = next(iter(requests))
            if len(requests) < _MOST and requests[oldest][0] > now:
                break
            del requests[oldest]
        token = self._make_token()
        requests[token] = now + _LIFE, reply
        return token

    def subject(self, token: str) -> bytes | None:
        """Return where the answer with a token is to go; None: it is not known, or too late."""
        found = self._requests.get(token)
        if found is None or found[0] <= self._monotonic():
            return None
        return found[1]
