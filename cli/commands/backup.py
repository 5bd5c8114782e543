"""``foldmq backup`` and ``foldmq restore``."""

import asyncio
import sys
import time
from pathlib import Path
from typing import IO

import typer

from cli.common import text
from cli.common.package_version import version
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.source_flags import SourceFlags, commands_for
from eventstore.errors import UsageError
from eventstore.reading.backup_files import Manifest
from eventstore.reading.log_backup import BackupResult, back_up, restore

STREAM = "-"
"""The place that stands for the standard input or output."""


def run_backup(flags: SourceFlags, place: str) -> None:
    """Back the logs up that the flags name, and print a summary."""
    done = asyncio.run(_back_up(flags, place))
    typer.echo(_summary(done), err=place == STREAM)


async def _back_up(flags: SourceFlags, place: str) -> BackupResult:
    target: Path | IO[bytes] = Path(place)
    where = f"directory {place}"
    if place == STREAM:
        if sys.stdout.isatty():
            raise UsageError("a backup is not written to a terminal: redirect the output to a file")
        target, where = sys.stdout.buffer, "the standard output"
    async with open_logs(flags) as logs:
        now = int(time.time() * 1000)
        return await back_up(logs, target, where, version, now, progress)


def _summary(done: BackupResult) -> str:
    added = text.count_of(done.added, "record")
    return f"backup complete: {added} added; it has {_contents(done.manifest)}"


def _contents(manifest: Manifest) -> str:
    return ", ".join(
        f"log {one.log} from record {one.first} to {one.last}"
        if one.last >= one.first
        else f"log {one.log} without records"
        for one in manifest.logs
    )


def run_restore(source: str, target: Path, *, new_node: bool) -> None:
    """Restore a backup, and print a summary and the next step."""
    place: Path | IO[bytes] = sys.stdin.buffer if source == STREAM else Path(source)
    done = asyncio.run(restore(place, target, progress, new_node=new_node))
    manifest = done.manifest
    count, time_text = text.count_of(done.records, "record"), text.clock(manifest.time_ms)
    lines = [f"restored {count}: {_contents(manifest)}, as of {time_text}"]
    if new_node:
        lines.append(f"the new directory is node {done.node}; the backup is of {manifest.node}")
    else:
        other = "" if manifest.several else " (--new-node makes it another node)"
        lines.append(
            f"the new directory is node {done.node} again: never run it beside the original{other}"
        )
    lines.append(
        "not in a backup: configuration, password file, permissions, certificates, web tokens"
    )
    processes = f" --processes {manifest.several}" if manifest.several else ""
    lines.append(f"continue with: {commands_for(target).complete('foldmq serve')}{processes}")
    typer.echo("\n".join(lines))
