"""Which messages a bridge passes on, and under which topics: mosquitto's ``topic`` lines.

A line is ``PATTERN [DIRECTION [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]``. A topic of this broker is
LOCAL-PREFIX and what matches PATTERN; at the other broker REMOTE-PREFIX replaces LOCAL-PREFIX. In
both, ``""`` is an empty text. The first line that matches a topic decides.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from outbox.selection import TextCache
from protocol.errors import FoldmqError
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topics import (
    MAX_TOPIC_BYTES,
    TopicError,
    matches,
    validate_topic_filter,
    validate_topic_name,
)

Direction: TypeAlias = Literal["out", "in", "both"]

_DIRECTIONS: Final = ("out", "in", "both")
_QOS: Final = {"0": 0, "1": 1, "2": 2}
_FORM: Final = "PATTERN DIRECTION QOS LOCAL-PREFIX REMOTE-PREFIX"


class TopicLineError(FoldmqError, ValueError):
    """A ``topic`` line is not legal."""


class TopicLine(NamedTuple):
    """One line."""

    pattern: str
    direction: Direction = "out"
    qos: int = 0
    local_prefix: str = ""
    remote_prefix: str = ""

    @property
    def is_out(self) -> bool:
        """Whether messages are sent to the other broker."""
        return self.direction != "in"

    @property
    def is_in(self) -> bool:
        """Whether messages are received from the other broker."""
        return self.direction != "out"

    @property
    def local_filter(self) -> str:
        """The topic filter of its messages in this broker."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """The topic filter of its messages in the other broker."""
        return self.remote_prefix + self.pattern

    @property
    def text(self) -> str:
        """The line as it is written in the settings."""
        parts = (self.pattern, self.direction, self.qos, self.local_prefix, self.remote_prefix)
        return " ".join(str(part) or '""' for part in parts)


def parse_topic_line(text: str) -> TopicLine:
    """Read a line; raises TopicLineError, which says what is wrong with it."""
    words = ["" if word == '""' else word for word in text.split()]
    if not 1 <= len(words) <= 5:
        raise TopicLineError(f"{text!r} is not {_FORM}")
    pattern, direction, qos, local, remote = [*words, *("out", "0", "", "")[len(words) - 1 :]]
    if direction not in _DIRECTIONS:
        raise TopicLineError(f"{text!r}: the direction must be out, in or both, not {direction!r}")
    if qos not in _QOS:
        raise TopicLineError(f"{text!r}: the QoS must be 0, 1 or 2, not {qos!r}")
    line = TopicLine(pattern, cast("Direction", direction), _QOS[qos], local, remote)
    if not pattern and not (local and remote):
        raise TopicLineError(f'{text!r}: the pattern "" needs both prefixes, which are the topics')
    for prefix in filter(None, (local, remote)):
        _check(validate_topic_name, prefix, text, "prefix ")
    for topic_filter in dict.fromkeys((line.local_filter, line.remote_filter)):
        _check(validate_topic_filter, topic_filter, text, "")
        if topic_filter.startswith(SHARE):
            raise TopicLineError(f"{text!r}: a bridge has no shared subscriptions")
    return line


def _check(validate: Callable[[str], None], topic: str, text: str, what: str) -> None:
    try:
        validate(topic)
    except TopicError as error:
        raise TopicLineError(f"{text!r}: {what}{topic!r}: {error.reason}") from None


class OutgoingTopic(NamedTuple):
    """What becomes of a topic of this broker."""

    topic: bytes
    """The topic at the other broker; empty: no topic can be that long."""
    qos: int
    """The highest QoS."""


class TopicMap:
    """The lines of a connection, applied to topics in both directions."""

    __slots__ = ("_in", "_incoming", "_out", "_outgoing")

    def __init__(self, lines: Sequence[TopicLine]) -> None:
        self._out = [line for line in lines if line.is_out]
        self._in = [line for line in lines if line.is_in]
        self._outgoing = TextCache(self._find_outgoing)
        self._incoming = TextCache(self._find_incoming)

    @property
    def local_filters(self) -> list[str]:
        """The topic filters of what is sent."""
        return list(dict.fromkeys(line.local_filter for line in self._out))

    @property
    def subscriptions(self) -> list[tuple[str, int]]:
        """The topic filters to subscribe to at the other broker, with their QoS."""
        return list({line.remote_filter: line.qos for line in reversed(self._in)}.items())[::-1]

    def outgoing(self, topic: str) -> OutgoingTopic | None:
        """Return where a message with this topic is sent to; None: no line matches."""
        return self._outgoing[topic]

    def _find_outgoing(self, topic: str) -> OutgoingTopic | None:
        line = next((line for line in self._out if matches(line.local_filter, topic)), None)
        if line is None:
            return None
        renamed = _renamed(topic, line.local_prefix, line.remote_prefix)
        return OutgoingTopic((renamed or "").encode(), line.qos)

    def incoming(self, topic: str) -> str | None:
        """Return the topic here of a message of the other broker; None: it has none."""
        return self._incoming[topic]

    def _find_incoming(self, topic: str) -> str | None:
        line = next((line for line in self._in if matches(line.remote_filter, topic)), None)
        return None if line is None else _renamed(topic, line.remote_prefix, line.local_prefix)


def _renamed(topic: str, prefix: str, replacement: str) -> str | None:
    """Return a topic with another prefix; None if no topic can be like that."""
    renamed = replacement + topic.removeprefix(prefix)
    return renamed if renamed and len(renamed.encode()) <= MAX_TOPIC_BYTES else None
