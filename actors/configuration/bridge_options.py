"""What the bridge is to do, already validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from protocol.nats import Mapping as SubjectMapping

REQUESTS: Final = "$nats/request/"
"""Below it, after a token and ``/``, is the topic of a request from NATS."""
REPLIES: Final = "$nats/reply/"
"""Below it, with that token, a client answers."""


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """Which messages cross, and how."""

    rules: SubjectMapping
    """Topics as subjects, and which of them are bridged."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """User name -> what the subjects of that user's clients begin with."""
    always: Sequence[str] = ()
    """Filters that are subscribed to although no client is."""
    qos: int = 0
    """QoS of messages from NATS that do not name one."""
    most_held: int = 64 * 1024 * 1024
    """Bytes that may wait for NATS before QoS 0 messages are dropped and others left to the log."""

    def place(self, subject: str) -> tuple[str, str | None]:
        """Return whose a subject is (the prefix), and its topic; None if it has none for us."""
        prefix = self.prefix_of(subject) if self.prefixes else ""
        return prefix, self.rules.topic(subject, prefix)

    def prefix_of(self, subject: str) -> str:
        """Return the longest prefix of a user that a subject begins with."""
        found = ""
        for prefix in self.prefixes.values():
            if len(prefix) > len(found) and (subject + ".").startswith(prefix + "."):
                found = prefix
        return found

    def prefix(self, user: str | None) -> str:
        """Return what the subjects of a user's clients begin with; mostly nothing."""
        return self.prefixes.get(user, "") if user is not None and self.prefixes else ""
