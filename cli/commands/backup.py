"""``foldmq backup`` and ``foldmq restore``."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import IO

import typer

from cli.common import text
from cli.common.package_version import version
from cli.common.progress_bar import progress
from cli.logs.key_files import store_key
from cli.logs.logs import open_logs
from cli.logs.source_flags import SourceFlags, commands_for
from cli.settings.log_settings import load_log_settings
from eventstore.errors import UsageError
from eventstore.log.key_file import copy_keys
from eventstore.reading.backup_files import Manifest
from eventstore.reading.log_backup import BackupResult, back_up, restore

STREAM = "-"
"""The place that stands for the standard input or output."""


def run_backup(flags: SourceFlags, place: str) -> None:
    """Back the logs up that the flags name, and print a summary."""
    result = asyncio.run(_back_up(flags, place))
    typer.echo(_summary(result), err=place == STREAM)


async def _back_up(flags: SourceFlags, place: str) -> BackupResult:
    target: Path | IO[bytes] = Path(place)
    where = f"directory {place}"
    if place == STREAM:
        if sys.stdout.isatty():
            raise UsageError("a backup is not written to a terminal: redirect the output to a file")
        target, where = sys.stdout.buffer, "the standard output"
    async with open_logs(flags) as logs:
        now = int(time.time() * 1000)
        settings = load_log_settings(flags.settings, os.environ, flags.config)
        key = store_key(settings.encryption_key_file)
        return await back_up(logs, target, where, version, now, progress, key)


def _summary(result: BackupResult) -> str:
    added = text.count_of(result.added, "record")
    key = "; encrypted, and the key is not in it" if result.manifest.key else ""
    return f"backup complete: {added} added; it has {_contents(result.manifest)}{key}"


def _contents(manifest: Manifest) -> str:
    return ", ".join(
        f"log {log.log} from record {log.first} to {log.last}"
        if log.last >= log.first
        else f"log {log.log} without records"
        for log in manifest.logs
    )


def run_restore(
    source: str,
    target: Path,
    *,
    new_node: bool,
    key_file: Path | None,
    new_key_file: Path | None,
    personal_keys: tuple[Path | None, Path | None] = (None, None),
) -> None:
    """Restore a backup, and print a summary and the next step.

    ``key_file`` has the key of an encrypted backup and of the new directory, ``new_key_file``
    another one for this. ``personal_keys`` are the file with the keys of personal topics, and the
    copy of it to make for a new node.
    """
    keys, copied_keys = personal_keys
    if (keys is None) != (copied_keys is None) or (keys is not None and not new_node):
        raise UsageError(
            "--personal-key-file, --new-personal-key-file and --new-node are needed together"
        )
    if copied_keys is not None and copied_keys.exists():
        raise UsageError(f"--new-personal-key-file {copied_keys} exists already")
    place: Path | IO[bytes] = sys.stdin.buffer if source == STREAM else Path(source)
    key, new_key = store_key(key_file), store_key(new_key_file)
    result = asyncio.run(
        restore(place, target, progress, new_node=new_node, key=key, new_key=new_key)
    )
    manifest = result.manifest
    if keys is not None and copied_keys is not None:
        copy_keys(keys, copied_keys, result.node)
    count, time_text = text.count_of(result.records, "record"), text.clock(manifest.time_ms)
    lines = [f"restored {count}: {_contents(manifest)}, as of {time_text}"]
    if new_node:
        lines.append(f"the new directory is node {result.node}; the backup is of {manifest.node}")
    else:
        other = "" if manifest.several else " (--new-node makes it another node)"
        lines.append(
            f"the new directory is node {result.node} again: never run it beside the original"
            + other
        )
    lines.append(
        "not in a backup: configuration, password file, permissions, certificates, web tokens, keys"
    )
    next_commands = commands_for(target, new_key_file or key_file)
    processes = f" --processes {manifest.several}" if manifest.several else ""
    lines.append(f"continue with: {next_commands.complete('foldmq serve')}{processes}")
    typer.echo("\n".join(lines))
