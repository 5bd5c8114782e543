"""Days of virtual time in seconds: an idle broker with housekeeping once a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.broker import broker
from actors.maintenance import projector, retention
from eventstore.log import log_writer

if TYPE_CHECKING:
    import pytest

MINUTE = 60.0


def look_rarely(patch: pytest.MonkeyPatch) -> None:
    """Let the broker look each minute at what it looks at each second.

    What has a deadline of its own, as a client's keep alive has, happens when it did before.
    """
    patch.setattr(broker, "_IDLE_SWEEP", MINUTE)
    patch.setattr(projector, "_ROUND_EVERY", MINUTE)
    patch.setattr(retention, "_LOOK_EVERY", MINUTE)
    patch.setattr(log_writer, "_WATCH_EVERY", MINUTE)
