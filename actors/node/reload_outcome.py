"""The outcome of a reload of the settings."""

from __future__ import annotations

from typing import NamedTuple


class ReloadOutcome(NamedTuple):
    """What became of a reload."""

    time_ms: int
    """Its end, Unix time in milliseconds."""
    error: str
    """Why the previous settings stay in effect; empty: the new ones are."""
    restart: tuple[str, ...] = ()
    """Changed settings that take effect at the next start."""
    check: str = ""
    """The command that checks the settings as this broker reads them; empty: not known."""
