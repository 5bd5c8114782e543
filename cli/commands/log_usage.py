"""``foldmq log usage``: the disk use of the logs, by topic or by client."""

import asyncio
import functools
import sys
from collections.abc import Mapping
from typing import cast

from cli.common import text
from cli.common.progress_bar import progress
from cli.common.tables import Column, Table
from cli.logs.logs import Logs, open_logs
from cli.logs.point_resolution import (
    end_at,
    is_between,
    parse_point,
    start_at,
    write_clock_notes,
)
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags
from eventstore.display import log_prefix
from eventstore.errors import UsageError
from projections.past.disk_use import DiskUse, sizes_by_levels
from projections.past.replay import Replay
from protocol.mqtt.shared_filters import split_share
from protocol.mqtt.topic_trie import FilterTrie

_BY = ("topic", "client")
_OTHERS = {"topic": "(of no topic)", "client": "(of no client)"}
_NAME = 200


def run_usage(
    flags: SourceFlags,
    by: str,
    levels: int,
    top: int,
    bounds: tuple[str | None, str | None],
    *,
    unheard: bool,
    as_json: bool,
) -> None:
    """Read the logs and print the bytes of the largest topics or clients.

    A log of several that cannot be read is left out, and IncompleteLogs raised at the end. Raises
    UsageError for contradictory flags.
    """
    if by not in _BY:
        raise UsageError(f"--by {text.escaped(by)}: must be one of {', '.join(_BY)}")
    if unheard and by != "topic":
        raise UsageError("--unheard needs --by topic")
    heard: FilterTrie[None] = FilterTrie()
    logs, uses = asyncio.run(_read(flags, bounds, heard if unheard else None))
    if uses:
        use = functools.reduce(DiskUse.merged, uses.values())
        sizes: Mapping[str | None, int] = (
            use.clients if by == "client" else sizes_by_levels(use.topics, levels)
        )
        if unheard:
            sizes = {
                topic: size
                for topic, size in use.topics.items()
                if topic is not None and not heard.match(topic)
            }
        if as_json:
            sys.stdout.write(text.json_line(_object(logs, uses, sizes, by, top)) + "\n")
        else:
            _print(use, sizes, by, top)
            for log, own_use in uses.items() if logs.several else ():
                sys.stdout.write(f"log {log}: {_size(own_use)}\n")
            of = f", {text.count_of(len(uses), 'log')}" if logs.several else ""
            sys.stdout.write(f"{_size(use)}{of}\n")
    logs.check_read()


async def _read(
    flags: SourceFlags, bounds: tuple[str | None, str | None], heard: FilterTrie[None] | None
) -> tuple[Logs, dict[str, DiskUse]]:
    """Return the logs, and the disk use by log.

    Add the topic filters of all subscriptions at the end to ``heard``.
    """
    start, end = (None if bound is None else parse_point(bound) for bound in bounds)
    uses: dict[str, DiskUse] = {}
    async with open_logs(flags, partly=True) as logs:
        logs.check_comparable(start, end)
        await write_clock_notes(logs, start, end)
        for log, source in logs.items():
            use = DiskUse()
            with logs.of(log):
                if source.cut is not None and start is None:
                    write_notice(log_prefix(log) + source.beginning())
                first = (await start_at(source, start)).sequence
                until = await end_at(source, end)
                last_record = until.sequence
                with progress("reading", max(0, last_record - first + 1)) as shown:
                    async for record in source.records(first, last_record):
                        if is_between(record.time_ms, start, end):
                            use.take(record, len(cast("bytes", record.stored.obj)))
                        shown(use.records)
                if heard is not None:
                    replay = Replay(source, last_record, None, progress)
                    await replay.to(until)
                    for state in replay.state.sessions.values():
                        for held in state.active():
                            heard.insert(split_share(held.filter)[1], held.filter, value=None)
                uses[log] = use
    return logs, uses


def _object(
    logs: Logs, uses: Mapping[str, DiskUse], sizes: Mapping[str | None, int], by: str, top: int
) -> dict[str, object]:
    rows = [{by: name, "bytes": size} for name, size in _largest(sizes)[:top]]
    by_log = [{"log": log, "bytes": use.bytes, "records": use.records} for log, use in uses.items()]
    return {
        "bytes": sum(use.bytes for use in uses.values()),
        "records": sum(use.records for use in uses.values()),
        f"{by}s": rows,
        "more": max(0, len(sizes) - len(rows)),
        **({"logs": by_log, "not_read": list(logs.errors)} if logs.several else {}),
    }


def _print(use: DiskUse, sizes: Mapping[str | None, int], by: str, top: int) -> None:
    total = max(1, use.bytes)
    columns: list[Column[tuple[str, int]]] = [
        Column(by, lambda row: row[0], ready=True),
        Column("bytes", lambda row: text.size(row[1]), right=True),
        Column("share", lambda row: f"{100 * row[1] / total:.1f} %", right=True),
    ]
    table = Table(columns)
    rows = _largest(sizes)
    for name, size in rows[:top]:
        table.add((_OTHERS[by] if name is None else text.name(name, _NAME), size))
    others = rows[top:]
    if others:
        table.add((f"(and {len(others):,} more)", sum(size for _, size in others)))
    table.close()


def _size(use: DiskUse) -> str:
    return f"{text.size(use.bytes)} in {text.count_of(use.records, 'record')}"


def _largest(sizes: Mapping[str | None, int]) -> list[tuple[str | None, int]]:
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0] or ""))
