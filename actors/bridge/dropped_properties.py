"""Properties that are left out because the other side cannot carry them."""

from __future__ import annotations

from typing import Final, Protocol

import structlog

_log = structlog.get_logger("foldmq")

TO_NATS: Final = "to NATS"
FROM_NATS: Final = "from NATS"


class LossCounter(Protocol):
    """The counter of lost properties."""

    dropped_properties: int


class PropertyLosses:
    """Counts lost properties; logs the first loss in each direction."""

    def __init__(self, stats: LossCounter) -> None:
        self._stats = stats
        self._logged: set[str] = set()

    def add(self, direction: str, count: int) -> None:
        """Count properties of messages in a direction."""
        if not count:
            return
        self._stats.dropped_properties += count
        if direction not in self._logged:
            self._logged.add(direction)
            _log.warning(f"bridge: properties of messages {direction} are left out", count=count)
