"""``foldmq salvage``: copies the intact part of a damaged log."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import typer

from cli.common import text
from cli.common.package_version import version
from cli.common.progress_bar import progress
from cli.logs.key_files import store_key
from cli.logs.source_flags import commands_for
from eventstore.reading.damaged_log import SalvageResult, salvage
from projections.log_proof import cause, unproven_end
from projections.past.salvage_needs import SalvageNeeds

_SHOWN = 10
"""Places of damage that are listed."""


def run_salvage(
    source: Path, target: Path, key_file: Path | None, new_key_file: Path | None
) -> None:
    """Copy the log in ``source`` to ``target`` and print a report.

    ``key_file`` has the key of both if they are encrypted, ``new_key_file`` another one for
    ``target``.
    """
    key, new_key = store_key(key_file), store_key(new_key_file)
    with progress_bars() as shown:
        saved = asyncio.run(salvage(source, target, shown, SalvageNeeds, version, key, new_key))
    typer.echo(report(saved, source, target, new_key_file or key_file))


def report(saved: SalvageResult, source: Path, target: Path, key_file: Path | None = None) -> str:
    """Return the report: the records kept, what was given up, and the next steps."""
    until = datetime.fromtimestamp(saved.until_ms / 1000, UTC)
    time_text = until.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
    kept = f"kept {saved.records:,} of {saved.known:,} records ({saved.entries:,} entries)"
    lines, commands = [f"{kept}, up to {time_text}"], commands_for(target, key_file)
    lines += _beside(saved, source)
    if saved.unproven is not None:
        lines.append(f"the end of the log is not proven: {cause(unproven_end(saved.unproven))}")
    for hole in saved.holes[:_SHOWN]:
        count = text.count_of(hole.last - hole.first + 1, "record")
        lines.append(f"given up: {count}, {hole.bytes:,} bytes: {hole}")
    if len(saved.holes) > _SHOWN:
        lines.append(f"given up: {len(saved.holes) - _SHOWN:,} more places")
    if saved.holes:
        lines.append(
            f"{source} is unchanged; the new log says what was given up: "
            f"{commands.complete('foldmq log')} --type LogSalvaged"
        )
    if saved.stateless:
        lines.append(
            "no complete checkpoint is left: sessions and retained messages from before the damage "
            "are known only where a later record repeats them"
        )
    if saved.sessions:
        names = text.several(map(text.name, saved.sessions), len(saved.sessions))
        count = text.count_of(len(saved.sessions), "session")
        lines.append(f"may lack subscriptions or messages of the lost records: {count}: {names}")
    if saved.dropped:
        count = text.count_of(saved.dropped, "message")
        lines.append(f"lost with the damage and dropped from their sessions: {count}")
    lines.append(f"continue with: {commands.complete('foldmq serve')}")
    return "\n".join(lines)


def _beside(saved: SalvageResult, source: Path) -> Iterator[str]:
    """Yield what is damaged beside the records, or that no damage was found."""
    frames, stray = saved.beside.frames, saved.beside.stray
    damage = [f"the frames of {text.count_of(frames, 'record')}"] if frames else []
    damage += [f"{text.count_of(stray, 'byte')} that belong to no record"] if stray else []
    if damage:
        intact = "these records are intact" if saved.holes else "every record is intact and kept"
        yield (f"damaged in what NATS stores around the records: {' and '.join(damage)}; {intact}")
    elif not saved.holes:
        yield (
            f"every record in {source} is intact; the times, checksums and indexes that NATS keeps "
            "of them were not checked: the new directory has new ones"
        )


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what shows how much is finished, in bytes or records, one bar after the other.

    A step that was left is not shown again: files that were read are read again while saving.
    """
    with contextlib.ExitStack() as bar:
        updates: dict[str, Callable[[int], None]] = {}

        def update(what: str, finished: int, total: int) -> None:
            if what not in updates:
                bar.close()
                updates[what] = bar.enter_context(progress(what, total, ""))
            if what == next(reversed(updates)):
                updates[what](finished)

        yield update
