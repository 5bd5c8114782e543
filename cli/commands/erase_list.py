"""``foldmq erase --list``: the erasures that a log records."""

import sys
from typing import NamedTuple

from cli.common import text
from cli.common.progress_bar import progress
from cli.common.tables import Column, Table
from cli.logs.logs import open_logs
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.display import log_prefix
from eventstore.format.records import decode_record, mentions
from projections.past.erasure_list import ERASURE_EVENTS, ErasureEntry, ErasureList


@run_to_end
async def list_erasures(flags: SourceFlags, *, as_json: bool) -> None:
    """Print the erasures of the log, of a running broker or not.

    Raises CorruptLog, IncompleteLogs if some of several cannot be read, and what opening raises.
    """
    async with open_logs(flags) as logs:
        table: Table[_Row] = Table([_LOG, *_COLUMNS] if logs.several else _COLUMNS)
        for log, source in logs.items():
            erasures, first = ErasureList(), source.begin
            with logs.of(log), progress("reading", max(0, source.last - first + 1)) as shown:
                async for sequence, data in source.stored(first, source.last):
                    if mentions(data, ERASURE_EVENTS):
                        erasures.take(decode_record(sequence, data))
                    shown(sequence - first + 1)
            if erasures.cut_off:
                count = text.count_of(erasures.cut_off, "erasure")
                rest = "; the last of them is not finished" if erasures.pending_before else ""
                line = f"earlier: {count}, whose records were cut off{rest}"
                write_notice(log_prefix(log) + line)
            for entry in erasures.entries:
                if as_json:
                    fields = {"log": log, **entry.fields()} if log else entry.fields()
                    sys.stdout.write(text.json_line(fields) + "\n")
                else:
                    table.add(_Row(log, entry))
            if not erasures.entries and not as_json and log not in logs.errors:
                write_notice(f"{log_prefix(log)}the log has no erasure")
    if table.rows:
        table.close()
    logs.check_read()


class _Row(NamedTuple):
    log: str
    entry: ErasureEntry


_LOG: Column[_Row] = Column("log", lambda row: row.log)
_COLUMNS: list[Column[_Row]] = [
    Column("erasure", lambda row: row.entry.number, right=True),
    Column("requested", lambda row: text.clock(row.entry.requested_ms), ready=True),
    Column("by", lambda row: row.entry.by, name=True),
    Column("cause", lambda row: row.entry.cause),
    Column(
        "before",
        lambda row: text.clock(row.entry.before_ms) if row.entry.before_ms else None,
        ready=True,
    ),
    Column("keys", lambda row: row.entry.keys, right=True),
    Column(
        "done",
        lambda row: text.clock(row.entry.done_ms) if row.entry.done_ms else "not finished",
        ready=True,
    ),
    Column(
        "topics",
        lambda row: text.several(map(text.name, row.entry.topics), len(row.entry.topics)),
        ready=True,
    ),
]
