"""The logs that a message has passed, so that no message goes round over bridges (MQTT 5).

They are a user property of the message, ``foldmq-path: LOG,LOG``, with the first log first. A log
is added where a bridge takes a message in, and where it sends one that no bridge took in. A log
does not know that a client is the bridge of another broker, so a message may come back to the first
log of a ring once.
"""

from typing import Final

from protocol.mqtt.message_properties import decode_message_properties, encode_message_properties

PATH_PROPERTY: Final = "foldmq-path"
MAX_PATH: Final = 8
"""Logs that a message may pass."""

_MARK: Final = PATH_PROPERTY.encode()


def passed_logs(block: bytes) -> tuple[str, ...]:
    """Return the logs that a message with these properties has passed, the first one first."""
    if _MARK not in block:  # nearly always
        return ()
    user = decode_message_properties(block).user
    paths = [value for name, value in user if name == PATH_PROPERTY]
    return tuple(filter(None, ",".join(paths).split(",")))


def would_loop(block: bytes, *logs: str) -> bool:
    """Return whether a message has passed one of some logs before, or too many logs."""
    passed = passed_logs(block)
    return not set(logs).isdisjoint(passed) or len(passed) >= MAX_PATH


def took_in(block: bytes, log: str) -> bool:
    """Return whether a bridge of this log took in a message that a bridge of this log published."""
    return passed_logs(block)[-1:] == (log,)


def with_log(block: bytes, log: str) -> bytes:
    """Return the properties of a message that has also passed this log."""
    if _MARK not in block:
        return block + _encoded(log)
    found = decode_message_properties(block)
    user = tuple(pair for pair in found.user if pair[0] != PATH_PROPERTY)
    bare = encode_message_properties(found._replace(user=user))
    return bare + _encoded(",".join((*passed_logs(block), log)))


def _encoded(path: str) -> bytes:
    raw = path.encode()
    return b"\x26" + _length(_MARK) + _length(raw)


def _length(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw
