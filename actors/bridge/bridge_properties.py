"""Writes the properties of messages to NATS: their headers and reply subjects.

Blocks of properties repeat from message to message, so the headers of a block are built once. Only
the remaining time to the expiry differs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.replies import ReplySubjects
from actors.limits.bridge_options import BridgeOptions
from eventstore.format.positions import Position
from eventstore.format.stored_properties import expired_until, seconds_left
from protocol.mqtt.message_properties import decode_message_properties
from protocol.nats.headers import Headers, header_block, without_message_id
from protocol.nats.property_headers import (
    MAX_PROPERTIES,
    NO_PROPERTIES,
    ReadProperties,
    expiry_lines,
    property_lines,
    read_properties,
)

_log = structlog.get_logger("foldmq")

TO_NATS: Final = "to NATS"
FROM_NATS: Final = "from NATS"


class PropertyLosses:
    """Counts lost properties; logs the first loss in each direction."""

    def __init__(self, stats: BridgeStats) -> None:
        self._stats = stats
        self._logged: set[str] = set()

    def add(self, direction: str, count: int) -> None:
        """Count properties of messages in a direction."""
        if not count:
            return
        self._stats.dropped_properties += count
        if direction not in self._logged:
            self._logged.add(direction)
            _log.warning(f"bridge: properties of messages {direction} are left out", count=count)


_KNOWN: Final = 1024
_KNOWN_SIZE: Final = 512
"""Maximum bytes of a block whose headers are cached."""
_LINE: Final = 4000
"""Maximum bytes of a protocol line with subject and reply subject: servers accept 4 096, unless
configured otherwise."""
_GROWTH: Final = 4
_FIXED: Final = 200


def header_room(block: bytes) -> int:
    """Return the maximum bytes that the headers of a block take."""
    return min(_GROWTH * len(block), MAX_PROPERTIES) + _FIXED if block else 0


class _Known(NamedTuple):
    """The common parts of all messages with a block."""

    lines: bytes
    """The headers without the expiry."""
    expiry: int | None
    has_message_id: bool
    dropped: int
    response: bytes | None
    """The subject of the Response Topic."""
    correlation: bytes | None


@dataclass(eq=False, repr=False)
class PropertyWriter:
    """Writes the properties of messages to NATS."""

    _options: BridgeOptions
    _replies: ReplySubjects
    _time_ms: Callable[[], int]
    """Returns the Unix time; it is read once for a batch: see :meth:`end_batch`."""
    _losses: PropertyLosses
    expired: Callable[[int], None]
    """Called with the number of messages that expired before they were sent."""

    def __post_init__(self) -> None:
        self._now_ms = 0
        """The time at which the current batch is sent; 0: the clock was not read yet."""
        self._known: dict[tuple[str, bytes], _Known] = {}

    def head(
        self, constant: bytes, ref: Position | None, prefix: str, block: bytes, expires: int
    ) -> tuple[bytes, bytes]:
        """Return the headers of a message, and the end of its reply subject.

        The latter is empty if no answer is requested. ``expires`` is the Unix time in seconds at
        which the message expires; 0: the block contains its lifetime.
        """
        parts = self._known.get((prefix, block)) or self._look_up(prefix, block)
        lines, expiry = parts.lines, parts.expiry
        if expiry is not None:
            if expires:
                expiry = seconds_left(expiry, expires, self._now())
            lines += expiry_lines(expiry, ttl=self._options.ttl)
        if parts.dropped:
            self._losses.add(TO_NATS, parts.dropped)
        if parts.has_message_id and ref is not None:
            constant, ref = without_message_id(constant), None
        sealed = b""
        if parts.response is not None:
            sealed = self._replies.seal(parts.response, parts.correlation)
        return header_block(constant, ref, lines), sealed

    def is_expired(self, expires: int) -> bool:
        """Return whether an expiry in Unix seconds has passed; 0: never.

        See :func:`~eventstore.format.stored_properties.expired_until`.
        """
        return 0 < expires <= expired_until(self._now())

    def end_batch(self) -> None:
        """Read the clock again for the next message."""
        self._now_ms = 0

    def _now(self) -> int:
        if not self._now_ms:
            self._now_ms = self._time_ms()
        return self._now_ms

    def fits_line(self, subject: bytes, reply: bytes) -> bool:
        """Return whether a server accepts a line of this size; otherwise count the lost reply."""
        if len(subject) + len(reply) <= _LINE:
            return True
        self._losses.add(TO_NATS, 1)
        return False

    def _look_up(self, prefix: str, block: bytes) -> _Known:
        parts = self._read(prefix, block)
        if len(block) <= _KNOWN_SIZE:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[prefix, block] = parts
        return parts

    def _read(self, prefix: str, block: bytes) -> _Known:
        properties = decode_message_properties(block)
        made = property_lines(properties, self._options.client_headers)
        response: bytes | None = None
        if properties.response_topic is not None:
            subject = self._options.rules.subject(properties.response_topic, prefix)
            response = subject.encode() if subject is not None else None
        return _Known(
            made.lines,
            properties.expiry,
            made.has_message_id,
            made.dropped,
            response,
            properties.correlation,
        )


# Reads the properties of messages from NATS: their headers and reply subjects.


class PropertyReader:
    """Reads the properties of messages from NATS."""

    def __init__(self, losses: PropertyLosses) -> None:
        self._losses = losses

    def read(
        self,
        headers: Headers | None,
        payload: bytes,
        topic: str,
        correlation: bytes | None = None,
        *,
        copied: bool = False,
    ) -> ReadProperties:
        """Return the properties of a message on a topic.

        ``correlation`` is the Correlation Data of the request that the message answers; it applies
        if the message has none. ``copied``: a NATS client copied the headers from a message of this
        broker, as ``respond()`` of nats-py does: their Response Topic does not apply to this
        message.
        """
        decoded = read_properties(headers, payload) if headers is not None else NO_PROPERTIES
        self._losses.add(FROM_NATS, decoded.dropped)
        properties = decoded.properties
        if copied or properties.response_topic == topic:
            properties = properties._replace(response_topic=None)
        if correlation is not None and properties.correlation is None:
            properties = properties._replace(correlation=correlation)
        return ReadProperties(properties)
