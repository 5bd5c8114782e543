"""``foldmq import mosquitto`` and ``foldmq import nats``: the steps, and what they print."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from cli.common import text
from cli.logs.next_commands import NextCommands
from cli.logs.source_flags import SourceFlags
from cli.migration.imported_settings import CONFIG_FILE, ImportedSettings


def import_mosquitto(
    source: Path, target: Path, database: Path | None, *, settings_only: bool
) -> bool:
    """Translate a configuration and the state that it names; return whether all was taken.

    Raises ConfigError for files that cannot be read, DamagedDatabase, or an EventStoreError; then
    nothing is left of the target.
    """
    from cli.migration.mosquitto_settings import import_mosquitto_settings

    result = ImportedSettings(source, target)
    result.check_target()
    configured = import_mosquitto_settings(result)
    place = database or configured
    if settings_only:
        result.remark(str(source), "--settings-only: the state was not taken")
    elif place is None:
        result.remark(str(source), "persistence is not true: there is no state to take")
    elif database is None and not place.exists():
        result.unmatch(str(source), f"{place} does not exist: no sessions or retained messages")
    else:
        _import_database(result, place)
    return _write(result)


def _import_database(result: ImportedSettings, place: Path) -> None:
    """Write the data directory, and print what it contains."""
    # Imported here: the settings alone do not need it.
    from cli.migration.imported_log import ImportedState, write_imported_log
    from cli.migration.mosquitto_database import read_database

    database = read_database(place)
    state = ImportedState(database, time.time_ns() // 1_000_000_000)
    for what, count in sorted(state.left_out.items()):
        result.unmatch(str(place), f"not taken: {what}: {count:,}")
    try:
        asyncio.run(write_imported_log(state, database.digest, result.data_dir))
    except BaseException:
        with contextlib.suppress(OSError):
            result.target.rmdir()
        raise
    counts = ", ".join(text.count_of(count, what) for what, count in sorted(state.counts.items()))
    sys.stdout.write(
        f"from {place}, as of {text.clock(database.saved_ms)}: {counts or 'nothing'}\n"
    )


def import_nats(source: Path, target: Path) -> bool:
    """Translate a configuration; return whether all of it was taken. Raises ConfigError."""
    from cli.migration.nats_settings import import_nats_settings

    result = ImportedSettings(source, target)
    result.check_target()
    import_nats_settings(result)
    result.unmatch(
        str(source),
        "sessions and retained messages are not taken: clients subscribe again, and 'foldmq import "
        "retained HOST:PORT' copies the retained messages while both brokers run",
    )
    return _write(result)


def _write(result: ImportedSettings) -> bool:
    """Write the settings, and print what has no counterpart and the next step."""
    result.write()
    for line in result.unmatched:
        sys.stderr.write(f"{line}\n")
    config = result.target / CONFIG_FILE
    problem = result.problem()
    if problem is not None:
        sys.stderr.write(f"{config}: needs a correction: {problem}\n")
    set_count = text.count_of(len(result.settings) + len(result.listeners), "setting")
    sys.stdout.write(f"{set_count} written to {config}\n")
    command = NextCommands(SourceFlags(config=config)).complete("foldmq serve")
    sys.stdout.write(f"continue with: {command}\n")
    return not result.unmatched and problem is None
