"""``foldmq salvage``: saves what is intact of a damaged log."""

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import typer

from cli.common import text
from cli.logsource.replay_fold import fold
from eventstore.format import Event, Position, Record, SessionClosed, SessionOpened, Subscribed
from eventstore.log import SalvageResult, salvage
from projections.state import NodeState, expand_runs, reference_runs

_UPDATE_SECONDS = 0.2


def run(source: Path, target: Path) -> None:
    """Save the log in ``source`` into ``target`` and print what was kept."""
    progress = Progress(sys.stderr)
    try:
        saved = asyncio.run(salvage(source, target, progress, Needed))
    finally:
        progress.close()
    typer.echo(report(saved, source, target))


def report(saved: SalvageResult, source: Path, target: Path) -> str:
    """Return what was kept, what was wrong and what to do next."""
    until = datetime.fromtimestamp(saved.until_ms / 1000, UTC)
    time_text = until.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
    kept = f"kept {saved.records:,} of {saved.known:,} records ({saved.entries:,} entries)"
    if saved.problem is None:
        wrong = f"every record in {source} is intact"
    else:
        wrong = f"damage: {saved.problem}; {source} is as it was"
    if saved.emptied:
        names = text.several(map(text.name, saved.emptied), len(saved.emptied))
        wrong += (
            f"\nlost with the damage: messages for {text.counted(len(saved.emptied), 'session')}, "
            f"begun anew with their subscriptions only: {names}"
        )
    return f"{kept}, up to {time_text}\n{wrong}\ngo on with: foldmq serve --data-dir {target}"


class Needed:
    """What the sessions of a log need, by the broker's own fold."""

    def __init__(self, begin: int) -> None:
        """Begin with record ``begin``."""
        self._state = NodeState(begin)

    def take(self, record: Record) -> None:
        """Fold the next record; raises CorruptLog and UnreadableEvent."""
        fold(self._state, record)

    def before(self, first: Position) -> dict[str, set[Position]]:
        """Return the messages before a position that sessions need, by session."""
        found: dict[str, set[Position]] = {}
        sessions = self._state.sessions
        for name in sessions.names():
            state = sessions.peek(name) if sessions.holds(name, first) else None
            if state is not None:
                found[name] = set(expand_runs(reference_runs(state), first))
        return found

    def begun_anew(self, session: str) -> list[Event]:
        """Return the events by which a session lets go of all but its subscriptions."""
        state = self._state.sessions.peek(session)
        if state is None:
            return []
        generation = state.generation + 1
        opened = SessionOpened(
            session,
            resumed=False,
            clean=state.clean,
            level=state.level,
            generation=generation,
            user=state.user,
            expiry=state.expiry,
        )
        granted = [(held.filter, held.qos) for held in state.active()]
        return [
            opened,
            *([Subscribed(session, granted)] if granted else []),
            SessionClosed(session, "salvage", generation),
        ]


class Progress:
    """One line on a terminal, updated in place; nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream
        self._terminal = stream.isatty()
        self._next = 0.0
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note that ``done`` of ``total`` bytes or records are done."""
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
