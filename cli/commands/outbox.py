"""``foldmq outbox``: the destinations of a running broker, and what they refused."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import typer

from cli.commands.actor_list import show
from cli.commands.bulk_change import operator_name
from cli.common import text
from cli.common.progress_bar import progress
from cli.common.tables import Column, duration_text
from cli.logs.broker_client import Refused
from cli.logs.broker_search import open_brokers
from cli.logs.logs import open_logs
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.display import log_prefix
from eventstore.errors import UsageError
from eventstore.format.destination_events import DestinationOpened, Forwarded, ForwardRefused
from eventstore.format.erasure_events import ErasureRequested
from eventstore.format.positions import (
    format_position,
    from_runs,
    parse_position,
    sequence_of,
)
from eventstore.format.records import Record
from eventstore.format.sealing import SealedBytes
from eventstore.log.message_store import messages_of
from eventstore.reading.log_source import LogSource
from projections.state.destinations import ERASED
from projections.views.replay_view import place_text

_RETRIES_AT_ONCE = 5000
_COLUMNS: list[Column[Mapping[str, Any]]] = [
    Column("NAME", lambda row: row["name"], name=True),
    Column("KIND", lambda row: row["kind"]),
    Column("STATE", lambda row: row["state"]),
    Column("BEHIND", lambda row: duration_text(row["behind_ms"]) if row["behind_ms"] else None),
    Column("CURSOR", lambda row: place_text(row["through"]), right=True),
    Column("SENT", lambda row: row["sent"], right=True),
    Column("REFUSED", lambda row: row["refused"] or None, right=True),
    Column("LOST", lambda row: row["losses"] or None, right=True),
    Column("ERASED", lambda row: row["erased"] or None, right=True),
    Column("ERROR", lambda row: text.escaped(row["error"] or "", 200) or None, ready=True),
]


def list_destinations(flags: SourceFlags, *, as_json: bool) -> None:
    """Print a row for each destination."""
    rows = asyncio.run(_rows(flags))
    log: Column[Mapping[str, Any]] = Column("LOG", lambda row: row["log"])
    columns = [log, *_COLUMNS] if rows and "log" in rows[0] else _COLUMNS
    show(rows, len(rows), "destination", columns, as_json=as_json)


async def _rows(flags: SourceFlags) -> list[dict[str, Any]]:
    async with open_brokers(flags) as brokers:
        answers = await brokers.each(lambda broker: broker.ask("destinations"))
        return [
            brokers.labelled(broker, row) for broker, answer in answers for row in answer["rows"]
        ]


def show_destination(flags: SourceFlags, name: str, *, as_json: bool) -> None:
    """Print a destination; raises Refused if there is none with this name."""
    rows = [row for row in asyncio.run(_rows(flags)) if row["name"] == name]
    if not rows:
        raise Refused(f"there is no destination {text.name(name)}")
    for row in rows:
        if as_json:
            sys.stdout.write(text.json_line(row) + "\n")
            continue
        facts = {
            "log": row.get("log"),
            "kind": row["kind"],
            "state": row["state"],
            "error": row["error"],
            "filters": ", ".join(row["filters"]),
            "opened": format_position(row["run"]),
            "cursor": place_text(row["through"]),
            "behind": duration_text(row["behind_ms"]) if row["behind_ms"] else "nothing",
            "sent": row["sent"],
            "sent again": row["retries"],
            "expired": row["expired"],
            "erased": row["erased"],
            "refused": row["refused"],
            "lost ranges": row["losses"],
        }
        for key, value in facts.items():
            if value not in (None, ""):
                shown = text.escaped(str(value), 1000)
                sys.stdout.write(f"{key + ':':<13}{shown}\n")


def change_destination(flags: SourceFlags, name: str, action: str) -> None:
    """Pause or resume a destination in all logs; raises typer.Exit if a broker refuses."""
    outcome = "paused" if action == "pause_destination" else "sending"
    _change(flags, name, outcome, do=action)


def retry_messages(flags: SourceFlags, name: str, at: str | None) -> None:
    """Send refused messages again; raises typer.Exit if a broker refuses."""
    refused: dict[str | None, list[int]] = {}
    for row in asyncio.run(_read_refused(flags, name))[0]:
        if at is None or row["position"] == at:
            refused.setdefault(row["log"], []).append(parse_position(row["position"]))
    if not refused:
        which = "has no messages to be sent again" if at is None else f"has not refused {at}"
        raise Refused(f"{text.name(name)} {which}")
    asyncio.run(_ask_to_retry(flags, name, {log: list({*refs}) for log, refs in refused.items()}))


async def _ask_to_retry(
    flags: SourceFlags, name: str, refused: Mapping[str | None, list[int]]
) -> None:
    for log, refs in refused.items():
        async with open_brokers(replace(flags, node=log) if log else flags) as brokers:
            for broker in brokers.present:
                accepted = postponed = 0
                request = {"do": "retry_messages", "to": name, "by": operator_name()}
                for begin in range(0, len(refs), _RETRIES_AT_ONCE):
                    part = refs[begin : begin + _RETRIES_AT_ONCE]
                    answer = await broker.ask("change", **request, refs=part)
                    accepted, postponed = accepted + answer["taken"], postponed + answer["left"]
                where = f"{brokers.prefix(broker.node)}{text.name(name)}"
                parts = [f"{text.count_of(accepted, 'message')} will be sent again"]
                if accepted + postponed < len(refs):
                    parts.append(f"{len(refs) - accepted - postponed:,} wait for it already")
                if postponed:
                    parts.append(f"repeat this command later for {postponed:,} more")
                sys.stdout.write(f"{where}: {'; '.join(parts)}\n")


def skip_messages(flags: SourceFlags, name: str, to: str | None) -> None:
    """Give up messages of a destination; raises typer.Exit if a broker refuses."""
    if to is None:
        _change(flags, name, "has no messages before the end of the log", do="skip_destination")
        return
    try:
        until = parse_position(to)
    except ValueError:
        raise UsageError(f"--to {text.escaped(to)}: must be a position, such as 4121.0") from None
    outcome = f"has no messages before {format_position(until)}"
    _change(flags, name, outcome, do="skip_destination", until=until)


@run_to_end
async def _change(flags: SourceFlags, name: str, outcome: str, **request: Any) -> None:
    """Change a destination in all logs; raises typer.Exit if one refuses, or none was changed."""
    refusals = changes = 0
    async with open_brokers(flags) as brokers:
        if brokers.several and "until" in request:
            nodes = ", ".join(brokers.nodes)
            raise UsageError(f"a position is one of a single log: give --node, one of {nodes}")
        request |= {"of_several_logs": True} if brokers.several else {}
        for broker in brokers.present:
            where = brokers.prefix(broker.node)
            try:
                answer = await broker.ask("change", to=name, by=operator_name(), **request)
            except Refused as refusal:
                refusals += 1
                sys.stderr.write(f"foldmq: {where}{refusal}\n")
                continue
            if unchanged := answer.get("unchanged"):
                sys.stderr.write(f"foldmq: {where}{unchanged}\n")
            else:
                changes += 1
                sys.stdout.write(f"{where}{text.name(name)}: {outcome}\n")
        sys.stdout.flush()
    if refusals or not changes:
        raise typer.Exit(1)


_OF_DESTINATIONS = {kind.__name__ for kind in (DestinationOpened, Forwarded, ForwardRefused)}
_OF_REFUSALS = {Forwarded.__name__, ForwardRefused.__name__}
_ERASURE = ErasureRequested.__name__
_REFUSED: list[Column[Mapping[str, Any]]] = [
    Column("POSITION", lambda row: row["position"], right=True),
    Column("TIME", lambda row: row["time"]),
    Column("CODE", lambda row: row["code"] or None, right=True),
    Column("REASON", lambda row: text.escaped(row["reason"], 200), ready=True),
]


def list_refused(flags: SourceFlags, name: str, *, as_json: bool) -> None:
    """Print the messages that a destination refused; raises Refused if the log knows none such."""
    rows, beginnings = asyncio.run(_read_refused(flags, name))
    log: Column[Mapping[str, Any]] = Column("LOG", lambda row: row["log"])
    columns = [log, *_REFUSED] if rows and rows[0]["log"] else _REFUSED
    show(rows, len(rows), "message", columns, as_json=as_json)
    for beginning in () if as_json else beginnings:
        sys.stdout.write(f"{beginning}; what was refused before is not listed\n")


async def _read_refused(flags: SourceFlags, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages that are refused now, without those that were sent again.

    Also return a sentence for each log whose beginning was cut off.
    """
    rows: dict[tuple[str | None, int], dict[str, Any]] = {}
    beginnings = []
    is_known = False
    async with open_logs(flags) as logs:
        for log, source in logs.items():
            if source.cut is not None:
                beginnings.append(log_prefix(log) + source.beginning())
            erased: set[int] = set()
            with progress("reading", max(0, source.last - source.begin + 1)) as shown:
                async for record in source.records(source.begin, source.last):
                    shown(record.sequence - source.begin + 1)
                    about = {raw["e"] for raw in record.raw_events if raw.get("to") == name}
                    erased.update(_erased_keys(record))
                    is_known = is_known or not about.isdisjoint(_OF_DESTINATIONS)
                    if about.isdisjoint(_OF_REFUSALS):
                        continue
                    for _, event in record.events():
                        if isinstance(event, ForwardRefused) and event.to == name:
                            time = text.clock(record.time_ms)
                            for ref in from_runs(event.refs):
                                rows[log, ref] = {
                                    "log": log,
                                    "position": format_position(ref),
                                    "time": time,
                                    "code": event.code,
                                    "reason": event.reason,
                                }
                        elif isinstance(event, Forwarded) and event.to == name:
                            for ref in from_runs(event.refs):
                                rows.pop((log, ref), None)
            own = {ref: row for (held, ref), row in rows.items() if held == log}
            async for ref, key in _keys_of(source, own if erased else ()):
                own[ref].update({"reason": ERASED} if key in erased else {})
    if not is_known:
        raise Refused(f"the log has no destination {text.name(name)}")
    return [*rows.values()], beginnings


def _erased_keys(record: Record) -> Iterator[int]:
    for raw in record.raw_events:
        if raw["e"] == _ERASURE:
            yield from from_runs(raw["keys"])


async def _keys_of(source: LogSource, refs: Iterable[int]) -> AsyncIterator[tuple[int, int]]:
    """Yield the positions of sealed messages that the log still has, and their keys."""
    places: dict[int, set[int]] = {}
    for ref in refs:
        places.setdefault(sequence_of(ref), set()).add(ref)
    for sequence in sorted(places):
        if sequence < source.begin:
            continue
        for record in await source.some([sequence]):
            for stored in messages_of(record):
                for ref in places[sequence].intersection(
                    range(stored.first, stored.first + len(stored.payloads))
                ):
                    message = stored.message(ref - stored.first)
                    for part in (message.payload, message.block):
                        if isinstance(part, SealedBytes):
                            yield ref, part.key
