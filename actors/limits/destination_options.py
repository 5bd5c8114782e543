"""The validated options of a destination of the outbox, as far as they concern the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DestinationOptions:
    """What is due to a destination, and how long the log is kept for it."""

    name: str
    kind: str
    filters: tuple[str, ...]
    digest: str
    """Digest of the settings that determine what is due."""
    begin: Literal["now", "oldest"] = "now"
    """Whether a new destination gets what the log already has."""
    max_behind: float = 0.0
    """Seconds for which the log is kept for it, if that is longer than ``keep``."""
    max_behind_bytes: int = 0
    """Size that the log may have because of it; 0: only ``keep_bytes`` limits it."""
    when_full: Literal["skip", "wait"] = "skip"
    """What happens beyond these bounds: messages to it are given up, or publishers wait."""
