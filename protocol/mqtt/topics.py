"""The rules for topic names and topic filters (section 4.7), and foldmq's reserved topics.

Both are compared level by level and never normalised [MQTT-4.7.3-4]; an empty level is a level.
``$share/group/filter`` is an ordinary filter here: shared subscriptions are not part of MQTT 3.
"""

from protocol.errors import FoldmqError

MAX_TOPIC_BYTES = 65_535
"""Longest topic name or filter in bytes of UTF-8 [MQTT-4.7.3-3]."""

RESERVED_ROOTS = frozenset({"$SYS", "$foldmq", "$replay", "$JS", "$MQTT", "$NRG"})
"""First levels that belong to the broker; no client publishes at or below them.

``$SYS`` contains the broker's status, ``$foldmq`` is reserved for foldmq, and the others are the
roots of JetStream's API (``$JS``), of the NATS Server's MQTT state (``$MQTT``) and of its Raft
groups (``$NRG``): no topic may ever be mapped to them. All other ``$`` topics are ordinary topics,
except that a filter that begins with a wildcard does not match them [MQTT-4.7.2-1].
"""

_READABLE_ROOTS = frozenset({"$SYS"})

_REPLAY_STATE = "$replay/state"
"""Clients get notices about their replays on it."""
_BRIDGES = ["$SYS", "broker", "connection"]
_NATS_ROOT = "$nats"
_NATS_REQUESTS = f"{_NATS_ROOT}/request/"
_NATS_REPLIES = f"{_NATS_ROOT}/reply/"
"""Clients may subscribe to requests from NATS, and publish answers to them; nothing else."""


class TopicError(FoldmqError, ValueError):
    """A topic name or filter is not legal; ``statement`` is the violated normative statement."""

    def __init__(self, reason: str, statement: str) -> None:
        super().__init__(f"{reason} [{statement}]")
        self.reason = reason
        self.statement = statement


def split_levels(topic_or_filter: str) -> list[str]:
    """Return the levels between the ``/``; ``/a//b`` has the four levels ``"", "a", "", "b"``."""
    return topic_or_filter.split("/")


def validate_topic_name(topic: str) -> None:
    """Raise ``TopicError`` unless ``topic`` is a legal topic name (sections 3.3.2.1, 4.7)."""
    _validate_text(topic, "topic name")
    if "+" in topic or "#" in topic:
        raise TopicError("topic name contains a wildcard", "MQTT-3.3.2-2")


def validate_topic_filter(topic_filter: str) -> None:
    """Raise ``TopicError`` unless ``topic_filter`` is a legal topic filter (section 4.7)."""
    _validate_text(topic_filter, "topic filter")
    if "#" in topic_filter and (
        topic_filter.index("#") != len(topic_filter) - 1 or topic_filter[-2:] not in ("#", "/#")
    ):
        raise TopicError("'#' is not a whole level at the end of the filter", "MQTT-4.7.1-2")
    # Counting beats a check of each level: 64 KiB of "+/" take microseconds, not milliseconds.
    wildcards = topic_filter.count("+")
    if wildcards and f"/{topic_filter.replace('/', '//')}/".count("/+/") != wildcards:
        raise TopicError("'+' is not a whole level of the filter", "MQTT-4.7.1-3")


def filters_overlap(topic_filter: str, other: str) -> bool:
    """Return whether two legal filters may both match some topic.

    Errs on the side of True (for topics that begin with ``$``). Linear in the number of levels.
    """
    ones, others = split_levels(topic_filter), split_levels(other)
    for mine, yours in zip(ones, others, strict=False):
        if mine == "#" or yours == "#":
            return True
        if mine != yours and "+" not in (mine, yours):
            return False
    longer, shared = (ones, len(others)) if len(ones) > len(others) else (others, len(ones))
    return len(longer) == shared or longer[shared:] == ["#"]


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a legal filter matches a legal topic name; to match many, use a trie."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):  # [MQTT-4.7.2-1]
        return False
    return filters_overlap(topic_filter, topic)


def is_reserved_topic(topic: str) -> bool:
    """Return whether clients may not publish to ``topic``: see ``RESERVED_ROOTS``."""
    if not topic.startswith("$"):
        return False
    root = topic.partition("/")[0]
    return root in RESERVED_ROOTS or (root == _NATS_ROOT and not topic.startswith(_NATS_REPLIES))


def is_bridge_state(topic: str) -> bool:
    """Return whether bridges report on ``topic`` whether they are connected.

    It is reserved for them: ``$SYS/broker/connection/NAME/state``.
    """
    levels = topic.split("/")
    return len(levels) == 5 and levels[:3] == _BRIDGES and levels[4] == "state"


def is_reserved_filter(topic_filter: str) -> bool:
    """Return whether clients may not subscribe to ``topic_filter``.

    Filters below ``RESERVED_ROOTS`` are refused, except those below ``$SYS`` and the topic of
    notices about replays; a replay is no ordinary subscription. Filters that begin
    with a wildcard cannot match any of these topics and are never refused.
    """
    if not topic_filter.startswith("$"):
        return False
    root = topic_filter.partition("/")[0]
    if root == _NATS_ROOT:
        return not topic_filter.startswith(_NATS_REQUESTS)
    if topic_filter == _REPLAY_STATE:
        return False
    return root in RESERVED_ROOTS and root not in _READABLE_ROOTS


def _validate_text(text: str, what: str) -> None:
    if not text:
        raise TopicError(f"empty {what}", "MQTT-4.7.3-1")
    if "\0" in text:
        raise TopicError(f"{what} contains U+0000", "MQTT-4.7.3-2")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise TopicError(f"{what} contains a surrogate", "MQTT-1.5.3-1") from None
    if size > MAX_TOPIC_BYTES:
        raise TopicError(
            f"{what} is {size} bytes long, at most {MAX_TOPIC_BYTES} fit", "MQTT-4.7.3-3"
        )
