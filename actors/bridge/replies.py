"""Requests from NATS that MQTT clients may answer.

MQTT 3.1.1 has no response topic. So a request on a subject is delivered on the topic
``$nats/request/TOKEN/TOPIC`` to subscribers of ``$nats/request/+/FILTER``, and a message published
on ``$nats/reply/TOKEN`` is the answer. A token is valid for a minute and cannot be guessed.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, NamedTuple

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
        request = self._requests.get(token) or self._offered.get(token)
        if request is None or request[0] <= self._monotonic():
            return None
        return request[1]


# Reply subjects of messages with a Response Topic: where NATS services answer MQTT clients.
#
# Most services answer with ``respond()``, without headers, so the Correlation Data of a request
# would be lost. Therefore the reply subject belongs to the bridge, and contains the real subject of
# the answer and the Correlation Data. It is *sealed*: only this bridge can create it, so that a
# NATS client cannot use it to publish where it has no permission. The bridge stores nothing for
# requests.

LIFE: Final = 3600
"""Seconds for which a request of an MQTT client can be answered."""
_MAC: Final = 16
_SEALED: Final = re.compile(
    rb"([0-9a-f]{1,12})\.([0-9a-f]{32})\.(-|c[A-Za-z0-9_-]*)\.(.+)", re.DOTALL
)


class Answered(NamedTuple):
    """The content of a sealed reply subject."""

    subject: bytes
    """The subject of the Response Topic."""
    correlation: bytes | None


class ReplySubjects:
    """Creates and reads sealed reply subjects; ``seconds`` returns Unix time."""

    def __init__(self, seconds: Callable[[], int], key: bytes | None = None) -> None:
        self._seconds = seconds
        self._key = key if key is not None else secrets.token_bytes(32)

    def seal(self, subject: bytes, correlation: bytes | None) -> bytes:
        """Return the tokens of a sealed reply subject for answers on ``subject``."""
        data = b"-" if correlation is None else b"c" + urlsafe_b64encode(correlation).rstrip(b"=")
        when = b"%x" % self._seconds()
        return b"%b.%b.%b.%b" % (when, self._mac(when, data, subject), data, subject)

    def unseal(self, sealed: bytes) -> Answered | None:
        """Return the sealed content; None if it is forged or too old."""
        match = _SEALED.fullmatch(sealed)
        if match is None:
            return None
        when, mac, data, subject = match.groups()
        if not compare_digest(mac, self._mac(when, data, subject)):
            return None
        if self._seconds() - int(when, 16) > LIFE:
            return None
        if data == b"-":
            return Answered(subject, None)
        return Answered(subject, urlsafe_b64decode(data[1:] + b"=" * (-len(data[1:]) % 4)))

    def _mac(self, when: bytes, data: bytes, subject: bytes) -> bytes:
        about = b"%b.%b.%b" % (when, data, subject)
        return blake2b(about, digest_size=_MAC, key=self._key).hexdigest().encode()
