"""The bound of the log: ``keep_bytes``, and its default, which depends on the free space."""

from typing import NamedTuple

from cli.common import text
from cli.settings.settings import MIN_KEPT, Settings
from eventstore.datadir import DataDir

_SHARE = 4
"""The logs get one part in so many of the space that is free for them."""


class LogBound(NamedTuple):
    """The bound of a log."""

    bytes: int
    """0: there is none."""
    why: str
    """Where the number comes from, as text."""

    def shown(self, keep: float) -> str:
        """Return how long the log is kept, as text."""
        kept = text.duration(round(keep * 1000)) if keep else "for ever"
        most = f", at most {text.size(self.bytes)}" if self.bytes else ""
        return f"{kept}{most} ({self.why})"


def log_bound(settings: Settings, datadir: DataDir | None, stream: str = "") -> LogBound:
    """Return the bound of a log, without the setting from the free space at this moment.

    ``datadir`` is the one whose embedded NATS server has the logs of all processes; None: an
    external server has them. ``stream`` is that of the log; empty: it does not exist yet. The
    default is not less than what the log has, and room to grow: no history is lost because of it.
    """
    if settings.keep_bytes is not None:
        return LogBound(settings.keep_bytes, "keep_bytes" if settings.keep_bytes else "no limit")
    if not settings.keep:
        return LogBound(0, "keep = 0: no limit unless keep_bytes is set")
    if datadir is None:
        return LogBound(0, "no limit: the space of the NATS server is not known; set keep_bytes")
    logs = max(1, settings.processes)
    free, held = datadir.free_bytes(), datadir.stored_bytes("FOLDMQ_LOG_*")
    own = datadir.stored_bytes(stream) if stream else 0
    part = (free + held) // _SHARE // logs
    # Three quarters full, a log is cut.
    as_it_is = min(own * 4 // 3, own + free // 2 // logs)
    if own > part:
        return LogBound(
            max(MIN_KEPT, as_it_is), "what it has now, and room to grow; set keep_bytes"
        )
    of = f"a quarter of the free space, {logs} logs" if logs > 1 else "a quarter of the free space"
    return LogBound(max(MIN_KEPT, part), f"{of}; set keep_bytes for another limit")
