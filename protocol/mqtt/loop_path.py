"""The logs that a message has passed, so that no message goes round over bridges (MQTT 5).

They are a user property of the message, ``foldmq-path: LOG,LOG``, with the first log first. A log
is added where a bridge takes a message in, and where it sends one that no bridge took in. A bridge
that takes messages from another foldmq adds the log there as well. A broker does not take a message
again that a bridge of another one publishes: it knows bridges of foldmq by their CONNECT, and those
of others by their will.
"""

from collections.abc import Collection
from typing import Final

from protocol.mqtt.message_properties import decode_message_properties, encode_message_properties
from protocol.mqtt.property_codec import MAX_PROPERTIES, MAX_PROPERTY_BYTES, encode_property
from protocol.mqtt.property_table import USER_PROPERTY
from protocol.mqtt.protocol_error import ProtocolError

PATH_PROPERTY: Final = "foldmq-path"
MAX_PATH: Final = 8
"""Logs that a message may pass."""
_LONGEST: Final = 64
"""Characters of a log's name. Any client may write this property; longer texts name no log."""

_FEW: Final = 4 * MAX_PROPERTIES
"""Bytes that have less than ``MAX_PROPERTIES``: nearly all are of 5 bytes or more."""
_MARK: Final = PATH_PROPERTY.encode()


def passed_logs(block: bytes) -> tuple[str, ...]:
    """Return the logs that a message with these properties has passed, the first one first."""
    if _MARK not in block:  # nearly always
        return ()
    user = decode_message_properties(block).user
    paths = [value for name, value in user if name == PATH_PROPERTY]
    return tuple(each for each in ",".join(paths).split(",") if 0 < len(each) <= _LONGEST)


def has_passed(block: bytes, logs: Collection[str]) -> bool:
    """Return whether a message has passed one of some logs before."""
    return _MARK in block and any(log in logs for log in passed_logs(block))


def would_loop(block: bytes, *logs: str) -> bool:
    """Return whether a message has passed one of some logs before, or too many logs."""
    passed = passed_logs(block)
    return not set(logs).isdisjoint(passed) or len(passed) >= MAX_PATH


def is_readable(block: bytes) -> bool:
    """Return whether a foldmq takes so many properties: bridges add to those of a client."""
    if len(block) <= _FEW:
        return True
    try:
        decode_message_properties(block)
    except ProtocolError:
        return False
    return len(block) <= MAX_PROPERTY_BYTES


def took_in(block: bytes, log: str) -> bool:
    """Return whether a bridge of this log took in a message that a bridge of this log published."""
    return passed_logs(block)[-1:] == (log,)


def with_logs(block: bytes, *logs: str) -> bytes:
    """Return the properties of a message that has also passed these logs, last in this order."""
    passed = [*passed_logs(block)]
    for log in logs:
        if passed[-1:] != [log]:
            passed.append(log)
    path = ",".join(passed)
    if _MARK not in block:
        return block + encode_property(USER_PROPERTY, (PATH_PROPERTY, path))
    properties = decode_message_properties(block)
    user = [pair for pair in properties.user if pair[0] != PATH_PROPERTY]
    return encode_message_properties(properties._replace(user=(*user, (PATH_PROPERTY, path))))
