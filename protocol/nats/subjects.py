"""MQTT topics as NATS subjects, and back.

The rules are those of the NATS Server (its documentation, "MQTT Topics and NATS Subjects"), level
by level:

=====================  ================  ===========
level of a topic       token             example
=====================  ================  ===========
any other              unchanged         ``foo/bar`` is ``foo.bar``
empty                  ``/``             ``/foo//bar/`` is ``/.foo./.bar./``
with a ``.``           ``//`` for it     ``foo.bar`` is ``foo//bar``
=====================  ================  ===========

The NATS Server refuses topics with characters that a subject cannot contain. Here they are escaped
as ``/`` and two lower-case hexadecimal digits, which no topic can contain and no rule above
yields: space (``/20``), control characters (U+0001 to U+001F, U+007F to U+009F), and ``*`` and
``>`` (``/2a``, ``/3e``): alone they would be wildcards, and within a token client libraries refuse
to subscribe to them (the NATS Server leaves them unchanged). Hence every legal topic has exactly
one subject, and the subject determines the topic.

A subject is at least as long as its topic. A NATS Server accepts no more than its
``max_control_line`` (4 096 bytes unless configured); the caller must respect that.
"""

import re

from protocol.errors import FoldmqError
from protocol.mqtt.topics import TopicError, split_levels, validate_topic_name

_EMPTY = "/"
_DOT = "//"
_ESCAPED = {
    chr(code): f"/{code:02x}"
    for code in (*range(0x01, 0x21), *range(0x7F, 0xA0), ord("*"), ord(">"))
}
_TO_TOKEN = _ESCAPED | {".": _DOT}
_FROM_TOKEN = {escape: character for character, escape in _TO_TOKEN.items()}
_ESCAPE = re.compile("//|/..|/", re.DOTALL)

_RESERVED = r"\x01-\x20\x7f-\x9f*>"
_UNSAFE = re.compile(f"[{_RESERVED}]")
_UNSAFE_OR_DOT = re.compile(f"[.{_RESERVED}]")
# Non-empty levels with nothing to escape: most names, which need no check of each level.
_PLAIN = f"[^/.{_RESERVED}]++"
_PLAIN_TOPIC = re.compile(f"{_PLAIN}(?:/{_PLAIN})*+")
_PLAIN_SUBJECT = re.compile(rf"{_PLAIN}(?:\.{_PLAIN})*+")


class SubjectError(FoldmqError, ValueError):
    """A NATS subject is not the subject of any MQTT topic."""


def topic_to_subject(topic: str) -> str:
    """Return the subject of a legal topic name."""
    if _PLAIN_TOPIC.fullmatch(topic):
        return topic.replace("/", ".")
    return ".".join(map(_token, split_levels(topic)))


def subject_to_topic(subject: str) -> str:
    """Return the topic name whose subject is ``subject``.

    Raises ``SubjectError`` if there is none: an empty token, a wildcard, a ``/`` that escapes
    nothing, a character that would have been escaped or is not legal in a topic name.
    """
    if _PLAIN_SUBJECT.fullmatch(subject):
        topic = subject.replace(".", "/")
    elif unsafe := _UNSAFE.search(subject):
        raise SubjectError(
            f"subject {subject!r} has no MQTT topic: {unsafe[0]!r} is a wildcard, or must be "
            "escaped"
        )
    else:
        topic = "/".join([_level(token, subject) for token in subject.split(".")])
    try:
        validate_topic_name(topic)
    except TopicError as error:
        raise SubjectError(f"subject {subject!r} has no MQTT topic: {error}") from None
    return topic


def filter_to_subjects(topic_filter: str) -> tuple[str, ...]:
    """Return the one or two subjects that together match the topics of a legal filter.

    ``foo/#`` also matches ``foo``, which ``foo.>`` does not: its subjects are both. The filter
    ``#`` is ``>`` alone. NATS has no rule about ``$``: a caller that subscribes to a subject that
    begins with a wildcard must skip topics that begin with ``$`` [MQTT-4.7.2-1].
    """
    levels = split_levels(topic_filter)
    if levels == ["#"]:
        return (">",)
    if levels[-1] == "#":
        above = ".".join(map(_filter_token, levels[:-1]))
        return f"{above}.>", above
    return (".".join(map(_filter_token, levels)),)


def _token(level: str) -> str:
    if not level:
        return _EMPTY
    return _UNSAFE_OR_DOT.sub(lambda character: _TO_TOKEN[character[0]], level)


def _filter_token(level: str) -> str:
    return "*" if level == "+" else _token(level)


def _level(token: str, subject: str) -> str:
    if token == _EMPTY:
        return ""
    if not token:
        raise SubjectError(f"subject {subject!r} has no MQTT topic: it has an empty token")
    if "/" not in token:
        return token
    try:
        return _ESCAPE.sub(lambda escape: _FROM_TOKEN[escape[0]], token)
    except KeyError as error:
        raise SubjectError(
            f"subject {subject!r} has no MQTT topic: {error.args[0]!r} is not an escape"
        ) from None
