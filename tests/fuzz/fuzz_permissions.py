"""Permission files: a text is refused in one line, or means the same however one asks."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from actors.access.rules import Permissions  # noqa: E402 (the target is loaded from anywhere)
from actors.access.rulesfile import PermissionFileError, parse  # noqa: E402
from protocol.topics import TopicError, matches, validate_topic_filter  # noqa: E402

FILE = Path("permissions.toml")
CLIENTS = ((None, "c"), ("ann", "pump-1"), ("a/b", "#"), ("$SYS", "$nats"), ("", "+"))
MOST = 20
"""Filters of one file that questions are asked about."""


def one(data: bytes) -> None:
    """Read a file and ask about what is in it; raises AssertionError if answers contradict."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        permissions = parse(FILE, text)
    except PermissionFileError as error:
        message = str(error)
        assert message.isprintable(), "an error is one line without anything that a terminal obeys"
        assert len(message) < 1000
        return
    filters = [rule.filter for rule in permissions.rules[:MOST]]
    for user, client in CLIENTS:
        for topic_filter in {*map(_asked, filters), *("#", "+/x", "$SYS/#")}:
            if _legal(topic_filter):
                _ask(permissions, user, client, topic_filter)


def _asked(topic_filter: str) -> str:
    return topic_filter.replace("%u", "ann").replace("%c", "pump-1").replace("%%", "%")


def _legal(topic_filter: str) -> bool:
    try:
        validate_topic_filter(topic_filter)
    except TopicError:
        return False
    return True


def _ask(permissions: Permissions, user: str | None, client: str, topic_filter: str) -> None:
    access = permissions.access(user, (), client)
    assert not access.open
    topic = topic_filter.replace("+", "x").removesuffix("/#").replace("#", "x") or "x"
    assert access.explain("publish", topic).allowed is access.may_publish(topic)
    explained = access.explain("subscribe", topic_filter)
    granted = access.may_subscribe(topic_filter)
    assert explained.allowed is granted
    assert access.may_subscribe(topic) is access.may_read(topic)
    if matches(topic_filter, topic) and not access.may_read(topic):
        assert access.guards(topic_filter), "what may not be read comes through unseen"
    if not granted:
        assert access.guards(topic_filter)
    if explained.partly and granted:
        assert access.guards(topic_filter)
