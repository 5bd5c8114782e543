"""The audit trail of the page's tokens: tokens added to their file and removed from it.

The file is changed by ``foldmq web-token`` or by hand, even while neither page nor broker runs. So
the page compares it with the last recorded state, kept in a file of its own, and has each
difference recorded. That file contains name, role, expiry and hash of the tokens, not the tokens.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from cli.commands.bulk_change import operator_name
from cli.settings.setting_sources import ConfigError
from cli.users import line_files
from cli.web.tokens import BadTokens, Grant, ends, read
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

RECORDED_FILE: Final = "web.tokens.recorded"
"""File in the data directory with the token lines as last recorded."""
ADDED: Final = "token_added"
REMOVED: Final = "token_removed"
LOOK: Final = 1.0
"""Seconds between checks of the file."""
_LONGEST_PAUSE: Final = 30.0

log = structlog.get_logger("foldmq")


def changes(before: dict[str, Grant], now: dict[str, Grant]) -> list[tuple[str, Grant]]:
    """Return the removed and the added tokens; a replaced token is in both."""
    removed = [(REMOVED, one) for name, one in before.items() if now.get(name) != one]
    return removed + [(ADDED, one) for name, one in now.items() if before.get(name) != one]


class TokenAudit:
    """Records changes of the token file; ``record`` sends them to the broker."""

    def __init__(
        self, file: Path, recorded: Path, record: Callable[..., Awaitable[object]]
    ) -> None:
        self._file = file
        self._recorded = recorded
        self._record = record
        self._known = self._read_recorded()
        self._seen: object = None

    async def keep(self) -> None:
        """Check the file periodically until cancelled."""
        pause = LOOK
        while True:
            try:
                await self._look()
                pause = LOOK
            except FoldmqError as error:
                if pause == LOOK:
                    log.warning("web tokens: changes cannot be recorded yet", reason=str(error))
                pause = min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        seen = self._stamp()
        if seen == self._seen:
            return
        try:
            now = read(self._file)
        except BadTokens:  # reported by Tokens; an invalid line removes no token
            self._seen = seen
            return
        for outcome, grant in changes(self._known, now):
            await self._record_change(outcome, grant)
            if outcome == ADDED:
                self._known[grant.name] = grant
            else:
                del self._known[grant.name]
            self._write_recorded()
        self._seen = seen

    async def _record_change(self, outcome: str, grant: Grant) -> None:
        await self._record(
            "change",
            do="web_accessed",
            by=operator_name(),
            outcome=outcome,
            address="",
            name=grant.name,
            role=grant.role,
            reason="",
            expires=ends(grant.expires),
            count=1,
            first_ms=round(time.time() * 1000),
        )
        log.info(
            "web token added" if outcome == ADDED else "web token removed",
            name=grant.name,
            role=grant.role,
            expires=ends(grant.expires),
        )

    def _stamp(self) -> object:
        try:
            found = self._file.stat()
        except OSError as error:
            return error.errno
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_recorded(self) -> dict[str, Grant]:
        try:
            return read(self._recorded)
        except BadTokens as error:
            log.warning("web tokens: recording all of them again", reason=str(error))
            return {}

    def _write_recorded(self) -> None:
        lines = [one.line for one in self._known.values()]
        try:
            line_files.write_lines(self._recorded, lines, as_directory=True)
        except ConfigError as error:
            log.warning("web tokens: some may be recorded twice", reason=str(error))
