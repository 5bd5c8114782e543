"""Requests from NATS that MQTT clients may answer.

MQTT 3.1.1 has no response topic. So a request on a subject is delivered on the topic
``$nats/request/TOKEN/TOPIC`` to subscribers of ``$nats/request/+/FILTER``, and a message published
on ``$nats/reply/TOKEN`` is the answer. A token is valid for a minute and cannot be guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIFE = 60.0
"""Seconds for which a request can be answered."""
_MAX = 16_384
"""Maximum number of pending requests; the oldest are dropped first."""
LONGEST = 1024
"""Maximum bytes of a reply subject."""


class Replies:
    """Pending requests and their reply subjects."""

    def __init__(self, monotonic: Callable[[], float], token: Callable[[], str]) -> None:
        self._monotonic = monotonic
        self._make_token = token
        self._requests: dict[str, tuple[float, bytes]] = {}
        self._offered: dict[str, tuple[float, bytes]] = {}
        """Entries for messages that no subscriber of requests got; they are limited separately."""

    def expect(self, reply: bytes, *, asked: bool = True) -> str:
        """Store a reply subject; return its token.

        ``asked``: a subscriber of requests gets the message; otherwise MQTT 5 clients may
        answer it.
        """
        now = self._monotonic()
        requests = self._requests if asked else self._offered
        while requests:
            oldest = next(iter(requests))
            if len(requests) < _MAX and requests[oldest][0] > now:
                break
            del requests[oldest]
        token = self._make_token()
        requests[token] = now + _LIFE, reply
        return token

    def subject(self, token: str) -> bytes | None:
        """Return the reply subject of a token; None if it is unknown or expired."""
        found = self._requests.get(token) or self._offered.get(token)
        if found is None or found[0] <= self._monotonic():
            return None
        return found[1]
