"""The home of a topic: the one of several logs that records its messages from NATS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eventstore.partitions import partition_of
from protocol.nats.headers import encode_value

if TYPE_CHECKING:
    from collections.abc import Sequence

_WILDCARDS = ("+", "#")


class TopicHomes:
    """Determines which log of ``names`` is the home of a topic; ``own`` is this broker's log.

    Topics with the same first level have the same home, so that most filters concern one log.
    """

    def __init__(self, names: Sequence[str], own: str) -> None:
        self.names = names
        self.own = own
        self._number = names.index(own)
        nodes = b"|".join(re.escape(encode_value(name)) for name in names)
        self._from_brokers = re.compile(rb"\r\nFoldmq-Node: (?:%b)\r\n" % nodes)

    def is_home(self, topic: str) -> bool:
        """Return whether this log records the messages from NATS on a topic."""
        return partition_of(topic.partition("/")[0], len(self.names)) == self._number

    def concerns(self, topic_filter: str) -> bool:
        """Return whether this log is the home of some topics that a filter matches."""
        return topic_filter.partition("/")[0] in _WILDCARDS or self.is_home(topic_filter)

    def is_from_broker(self, headers: bytes, topic_header: bytes) -> bool:
        """Return whether one of the brokers sent a message to NATS.

        The logs exchange such messages themselves. ``topic_header`` is :func:`topic_header` of its
        topic: if a NATS client publishes with copied headers elsewhere, the topic differs.
        """
        return topic_header in headers and self._from_brokers.search(headers) is not None


def topic_header(topic: str) -> bytes:
    """Return the header that names the topic of a message from a broker, with its line ends."""
    return b"\r\nFoldmq-Topic: %b\r\n" % encode_value(topic)
