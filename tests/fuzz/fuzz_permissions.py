"""Permission files: a text is refused in one line, or has one meaning for every query.

A text that begins with ``!`` is not a file: each of its lines is a rule, ``+FILTER`` or
``-FILTER``. Mutations of files seldom are files with other rules.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from actors.access.filter_index import FilterError
from actors.access.rules import Permissions, Rule
from actors.access.rules_file import PermissionFileError, parse_rules
from protocol.mqtt.topics import (
    TopicError,
    matches,
    validate_topic_filter,
)

FILE = Path("permissions.toml")
CLIENTS = ((None, "c"), ("ann", "pump-1"), ("a/b", "#"), ("$SYS", "$nats"), ("", "+"))
MAX = 6
"""Filters of one file that questions are asked about."""


def one(data: bytes) -> None:
    """Read a file and ask about what is in it; raises AssertionError if answers contradict."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        permissions = _short(text[1:]) if text.startswith("!") else parse_rules(FILE, text)
    except FilterError:
        return
    except PermissionFileError as error:
        message = str(error)
        assert message.isprintable(), "an error is one line without anything that a terminal obeys"
        assert len(message) < 1000
        return
    filters = {_asked(rule.filter) for rule in permissions.rules[:MAX]}
    filters = {one for one in filters if _legal(one)} | {"#", "+/x", "$SYS/#"}
    for user, client in CLIENTS:
        for topic_filter in filters:
            _ask(permissions, user, client, topic_filter, filters)


def _short(text: str) -> Permissions:
    return Permissions(
        Rule(line[0] == "+", True, True, line[1:]) for line in text.split("\n") if len(line) > 1
    )


def _asked(topic_filter: str) -> str:
    return topic_filter.replace("%u", "ann").replace("%c", "pump-1").replace("%%", "%")


def _legal(topic_filter: str) -> bool:
    try:
        validate_topic_filter(topic_filter)
    except TopicError:
        return False
    return True


def _topic(topic_filter: str) -> str:
    """Give a topic that a filter matches."""
    return topic_filter.replace("+", "x").removesuffix("/#").replace("#", "x") or "x"


def _ask(
    permissions: Permissions, user: str | None, client: str, topic_filter: str, filters: set[str]
) -> None:
    access = permissions.access(user, (), client)
    if access.open:
        assert not permissions.rules
        return
    explained = access.explain("subscribe", topic_filter)
    granted, guarded = access.may_subscribe(topic_filter), access.guards(topic_filter)
    assert explained.allowed is granted
    assert guarded or (granted and not explained.partly)
    for topic in map(_topic, filters):
        assert access.explain("publish", topic).allowed is access.may_publish(topic)
        readable = access.may_read(topic)
        assert access.may_subscribe(topic) is readable
        if matches(topic_filter, topic) and not readable:
            assert guarded, "what may not be read comes through unseen"
