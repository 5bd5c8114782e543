"""The validated options of the bridge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.nats.mapping import Mapping as SubjectMapping

REQUESTS: Final = "$nats/request/"
"""Prefix of requests from NATS; a token, ``/`` and the topic follow."""
REPLIES: Final = "$nats/reply/"
"""Prefix of replies to them; the token follows."""


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """Options of the bridge: the messages that it forwards, and their mapping."""

    rules: SubjectMapping
    """Mapping of topics to subjects, and which are bridged."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """User name -> prefix of the subjects of that user's clients."""
    always: Sequence[str] = ()
    """Filters that are always subscribed to in NATS."""
    qos: int = 0
    """QoS of messages from NATS without a QoS header."""
    most_held: int = 64 * 1024 * 1024
    """Maximum bytes waiting for NATS before QoS 0 messages are dropped and others left to the
    log."""

    ttl: bool = False
    """Whether messages that expire are sent with ``Nats-TTL``."""
    client_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that user properties may set although NATS servers act on them: name in lower case
    -> as it is written."""

    several_nodes: bool = False
    """Whether another node, a previous leader, may send messages of this broker's log to NATS."""

    def place(self, subject: str) -> tuple[str, str | None]:
        """Return the prefix and the topic of a subject; None if it is not bridged."""
        prefix = self.prefix_of(subject) if self.prefixes else ""
        return prefix, self.rules.topic(subject, prefix)

    def prefix_of(self, subject: str) -> str:
        """Return the longest user prefix of a subject."""
        longest = ""
        for prefix in self.prefixes.values():
            if len(prefix) > len(longest) and (subject + ".").startswith(prefix + "."):
                longest = prefix
        return longest

    def prefix(self, user: str | None) -> str:
        """Return the prefix of the subjects of a user's clients; usually empty."""
        return self.prefixes.get(user, "") if user is not None and self.prefixes else ""
