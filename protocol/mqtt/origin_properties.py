"""User properties with which two foldmq tell each other which messages a bridge brings (MQTT 5).

A bridge names its log in CONNECT, and a foldmq answers with its own in CONNACK. Each message at
QoS 1 then has the place that it has in the log of the bridge, as its last property. The receiver
removes it, and knows by it a message that it has already, whatever became of the session.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from protocol.mqtt.property_codec import encode_property
from protocol.mqtt.property_table import USER_PROPERTY

LOG_PROPERTY: Final = "foldmq-log"
ORIGIN_PROPERTY: Final = "foldmq-origin"

LogRun: TypeAlias = tuple[str, int]
"""The name of a log, and the position at which the destination was opened there."""

# Any client may send these numbers. With 18 digits they fit into the columns of readers of the log.
_LOG: Final = re.compile(r"([A-Za-z0-9_-]{1,64}) ([0-9]{1,18})")
_ORIGIN: Final = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})")
_MARK: Final = encode_property(USER_PROPERTY, (ORIGIN_PROPERTY, ""))[:-2]


class Origin(NamedTuple):
    """The place of a message in the log that it comes from."""

    at: int
    """Position at which it takes effect: messages are sent in this order."""
    position: int
    """Position of the message; another one only at QoS 2."""
    time_ms: int
    """Time of the record in which it takes effect, Unix time in milliseconds."""


def log_property(log: str, run: int = 0) -> tuple[str, str]:
    """Return the user property of CONNECT or CONNACK."""
    return LOG_PROPERTY, f"{log} {run}"


def log_of(user: Iterable[tuple[str, str]]) -> LogRun | None:
    """Return the log that a CONNECT or CONNACK names; None: its sender is no foldmq."""
    value = next((value for name, value in user if name == LOG_PROPERTY), "")
    parts = _LOG.fullmatch(value)
    return None if parts is None else (parts[1], int(parts[2]))


def with_origin(block: bytes, origin: Origin) -> bytes:
    """Return the properties of a message with its origin."""
    text = " ".join(map(str, origin))
    return block + encode_property(USER_PROPERTY, (ORIGIN_PROPERTY, text))


def split_origin(block: bytes) -> tuple[Origin | None, bytes]:
    """Return the origin in the properties of a message, and the properties without it."""
    before, mark, value = block.rpartition(_MARK)
    origin = _parsed(value) if mark else None
    return (None, block) if origin is None else (origin, before)


def without_origin(block: bytes) -> bytes:
    """Return the properties of a message without any origin, not even one that a client wrote."""
    end = len(block)
    while (at := block.rfind(_MARK, 0, end)) >= 0 and _parsed(block[at + len(_MARK) : end]):
        end = at
    return block[:end]


def _parsed(value: bytes) -> Origin | None:
    parts = _ORIGIN.fullmatch(value, 2)
    if parts is None or int.from_bytes(value[:2], "big") != len(value) - 2:
        return None
    return Origin(int(parts[1]), int(parts[2]), int(parts[3]))
