"""The filters of replays: ``$replay/FROM/FILTER``, ``$replay/FROM..TO/FILTER``, ``$stream/NAME``.

A subscription with such a filter reads the log from a moment on. FROM and TO are moments
(``eventstore.reading.moments``) without a ``/``; FILTER is an ordinary topic filter. In
``$stream/NAME/FILTER``, as other brokers spell it, NAME has no meaning, and the beginning is the
user property ``stream-offset`` of the SUBSCRIBE.
"""

from typing import Final, NamedTuple

from protocol.mqtt.topics import TopicError, validate_topic_filter

REPLAY: Final[str] = "$replay/"
STREAM: Final[str] = "$stream/"
REPLAY_STATE: Final[str] = "$replay/state"
"""Topic on which a client gets notices about its replays."""
STREAM_OFFSET: Final[str] = "stream-offset"
"""User property of a SUBSCRIBE: where a ``$stream`` begins."""
MAX_MOMENT: Final[int] = 1024
"""Largest number of characters of a moment: positions in 32 logs."""
_STATEMENT: Final = "MQTT-4.7.3-1"
_NESTED: Final = ("$share/", REPLAY, STREAM)
_OFFSETS: Final = {"": "new", "latest": "new", "earliest": "all"}


class ReplayFilter(NamedTuple):
    """The parts of the filter of a replay."""

    start: str
    """FROM: a moment, or ``all``, ``new`` or ``last``."""
    until: str
    """TO: a moment; empty: it goes on with new messages."""
    topic_filter: str
    """Topic filter of its messages; empty for ``$stream/NAME`` alone."""
    stream: str = ""
    """NAME of a ``$stream``."""


def is_replay_filter(topic_filter: str) -> bool:
    """Return whether a filter is spelled as that of a replay."""
    if not topic_filter.startswith("$"):
        return False
    return topic_filter.startswith((REPLAY, STREAM)) and topic_filter != REPLAY_STATE


def replayed_filter(topic_filter: str) -> str:
    """Return the filter of the messages in the filter of a replay; empty if it has none."""
    parts = topic_filter.split("/", 2)
    return parts[2] if len(parts) > 2 else ""


def split_replay(topic_filter: str, offset: str = "") -> ReplayFilter:
    """Return the parts of a legal filter for which :func:`is_replay_filter` is true.

    ``offset`` is the value of ``stream-offset``; empty: the client sent none. The moments are not
    checked, except that they are short. Raises TopicError with the reason.
    """
    if topic_filter.startswith(STREAM):
        name, _, inner = topic_filter[len(STREAM) :].partition("/")
        if not name:
            raise TopicError("the stream has no name: $stream/NAME/FILTER", _STATEMENT)
        _check_short(offset)
        start, until = _split_moments(_OFFSETS.get(offset) or _in_microseconds(offset))
        if inner or topic_filter.endswith("/"):
            _check_inner(inner)
        return ReplayFilter(start, until, inner, name)
    moments, slash, inner = topic_filter[len(REPLAY) :].partition("/")
    if not slash:
        raise TopicError("the replay has no filter: $replay/FROM/FILTER", _STATEMENT)
    _check_short(moments)
    _check_inner(inner)
    return ReplayFilter(*_split_moments(moments), inner)


def _split_moments(text: str) -> tuple[str, str]:
    start, dots, until = text.partition("..")
    if not start:
        raise TopicError("the replay has no beginning: $replay/FROM/FILTER", _STATEMENT)
    if dots and not until:
        raise TopicError("the replay has no end after '..'", _STATEMENT)
    return start, until


def _in_microseconds(offset: str) -> str:
    """Return a beginning: plain digits are a Unix time in microseconds."""
    if offset.isascii() and offset.isdigit():
        return f"@{int(offset) // 1_000_000}.{int(offset) // 1000 % 1000:03}"
    return offset


def _check_short(moments: str) -> None:
    if len(moments) > 2 * MAX_MOMENT:
        raise TopicError("the beginning and end of the replay are too long", _STATEMENT)


def _check_inner(topic_filter: str) -> None:
    if not topic_filter:
        raise TopicError("the replay has no filter behind its beginning", _STATEMENT)
    if topic_filter.startswith(_NESTED):
        raise TopicError("a replay reads neither shared subscriptions nor replays", _STATEMENT)
    validate_topic_filter(topic_filter)
