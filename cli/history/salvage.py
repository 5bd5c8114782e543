"""``foldmq salvage``: copies the intact part of a damaged log."""

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import typer

from cli.common import text
from eventstore.log import SalvageResult, salvage
from projections.replay import SalvageNeeds

_UPDATE_SECONDS = 0.2


def run_salvage(source: Path, target: Path) -> None:
    """Copy the log in ``source`` to ``target`` and print a report."""
    progress = ProgressLine(sys.stderr)
    try:
        saved = asyncio.run(salvage(source, target, progress, SalvageNeeds))
    finally:
        progress.close()
    typer.echo(report(saved, source, target))


def report(saved: SalvageResult, source: Path, target: Path) -> str:
    """Return the report: the records kept, the damage, and the next step."""
    until = datetime.fromtimestamp(saved.until_ms / 1000, UTC)
    time_text = until.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
    kept = f"kept {saved.records:,} of {saved.known:,} records ({saved.entries:,} entries)"
    if saved.problem is None:
        wrong = f"every record in {source} is intact"
    else:
        wrong = f"damage: {saved.problem}; {source} is unchanged"
    if saved.emptied:
        names = text.several(map(text.name, saved.emptied), len(saved.emptied))
        wrong += (
            f"\nlost with the damage: messages for {text.count_of(len(saved.emptied), 'session')}, "
            f"reset, with only their subscriptions: {names}"
        )
    return f"{kept}, up to {time_text}\n{wrong}\ncontinue with: foldmq serve --data-dir {target}"


class ProgressLine:
    """A progress line, updated in place, if the stream is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream
        self._terminal = stream.isatty()
        self._next = 0.0
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how many of ``total`` bytes or records are done."""
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return
        self._next = now + _UPDATE_SECONDS
        self._shown = True
        percent = 100 * done // total if total else 100
        self._stream.write(f"\r{what}: {percent:3} % of {total:,} ")
        self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
