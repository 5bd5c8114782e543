"""``foldmq log usage``: the disk use of the logs, by topic or by client."""

import asyncio
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """The options of ``foldmq log usage``."""

    by: str
    levels: int
    top: int
    bounds: tuple[str | None, str | None]
    unheard: bool
    as_json: bool


def usage_options(
    by: str,
    levels: int,
    top: int,
    bounds: tuple[str | None, str | None],
    *,
    unheard: bool,
    as_json: bool,
) -> UsageOptions:
    """Return the options from the flags; raises UsageError."""
    if by not in _BY:
        raise UsageError(f"--by {text.escaped(by)}: must be one of {', '.join(_BY)}")
    if unheard and by != "topic":
        raise UsageError("--unheard needs --by topic")
    return UsageOptions(by, levels, top, bounds, unheard, as_json)


def run_usage(flags: SourceFlags, asked: UsageOptions) -> None:
    """Read the logs and print the bytes of the largest topics or clients.

    A log of several that cannot be read is left out, and IncompleteLogs raised at the end.
    """
    heard: FilterTrie[None] = FilterTrie()
    logs, uses = asyncio.run(_read(flags, asked, heard))
    if uses:
        use = functools.reduce(DiskUse.merged, uses.values())
        found: Mapping[str | None, int] = (
            use.clients if asked.by == "client" else sizes_by_levels(use.topics, asked.levels)
        )
        if asked.unheard:
            found = {
                topic: size
                for topic, size in use.topics.items()
                if topic is not None and not heard.match(topic)
            }
        if asked.as_json:
            sys.stdout.write(text.json_line(_object(logs, uses, found, asked)) + "\n")
        else:
            _print(use, found, asked)
            for log, one in uses.items() if logs.several else ():
                sys.stdout.write(f"log {log}: {_size(one)}\n")
            of = f", {text.count_of(len(uses), 'log')}" if logs.several else ""
            sys.stdout.write(f"{_size(use)}{of}\n")
    logs.check_read()


async def _read(
    flags: SourceFlags, asked: UsageOptions, heard: FilterTrie[None]
) -> tuple[Logs, dict[str, DiskUse]]:
    """Return the logs, and the disk use by log.

    With ``unheard``, add the topic filters of all subscriptions at the end to ``heard``.
    """
    start, end = (None if one is None else parse_point(one) for one in asked.bounds)
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
                last = until.sequence
                with progress("reading", max(0, last - first + 1)) as shown:
                    async for record in source.records(first, last):
                        if is_between(record.time_ms, start, end):
                            use.take(record, len(cast("bytes", record.stored.obj)))
                        shown(use.records)
                if asked.unheard:
                    replay = Replay(source, last, None, progress)
                    await replay.to(until)
                    for state in replay.state.sessions.values():
                        for held in state.active():
                            heard.insert(split_share(held.filter)[1], held.filter, value=None)
                uses[log] = use
    return logs, uses


def _object(
    logs: Logs, uses: Mapping[str, DiskUse], found: Mapping[str | None, int], asked: UsageOptions
) -> dict[str, object]:
    rows = [{asked.by: name, "bytes": size} for name, size in _largest(found)[: asked.top]]
    by_log = [{"log": log, "bytes": use.bytes, "records": use.records} for log, use in uses.items()]
    return {
        "bytes": sum(use.bytes for use in uses.values()),
        "records": sum(use.records for use in uses.values()),
        f"{asked.by}s": rows,
        "more": max(0, len(found) - len(rows)),
        **({"logs": by_log, "not_read": list(logs.errors)} if logs.several else {}),
    }


def _print(use: DiskUse, found: Mapping[str | None, int], asked: UsageOptions) -> None:
    total = max(1, use.bytes)
    columns: list[Column[tuple[str, int]]] = [
        Column(asked.by, lambda row: row[0], ready=True),
        Column("bytes", lambda row: text.size(row[1]), right=True),
        Column("share", lambda row: f"{100 * row[1] / total:.1f} %", right=True),
    ]
    table = Table(columns)
    rows = _largest(found)
    for name, size in rows[: asked.top]:
        table.add((_OTHERS[asked.by] if name is None else text.name(name, _NAME), size))
    rest = rows[asked.top :]
    if rest:
        table.add((f"(and {len(rest):,} more)", sum(size for _, size in rest)))
    table.close()


def _size(use: DiskUse) -> str:
    return f"{text.size(use.bytes)} in {text.count_of(use.records, 'record')}"


def _largest(found: Mapping[str | None, int]) -> list[tuple[str | None, int]]:
    return sorted(found.items(), key=lambda one: (-one[1], one[0] or ""))
