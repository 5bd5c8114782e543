"""``foldmq erase``: contents of personal topics, and names, are erased by destroying their keys.

Also the list of erasures in the log, and the search for a text in all files of a broker.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from cli.commands.bulk_change import confirmed, operator_name
from cli.commands.command_flags import ChangeOptions, EraseFlags
from cli.common import text
from cli.common.progress_bar import progress
from cli.common.tables import Column, Table
from cli.logs.broker_client import NoAnswer, NoLiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.key_files import store_key
from cli.logs.log_brokers import LogBrokers, log_of_session
from cli.logs.logs import open_logs
from cli.logs.point_resolution import parse_point
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from cli.settings.log_settings import load_log_settings
from eventstore.display import log_prefix
from eventstore.errors import NoLog, UsageError
from eventstore.format.name_entries import CLIENT
from eventstore.format.records import decode_record, mentions
from eventstore.reading.text_search import TextSearch
from projections.past.erasure_list import ERASURE_EVENTS, ErasureEntry, ErasureList

_LONGEST: Final = 60.0
"""Seconds after which it is no longer awaited that all logs have erased."""
_AGAIN: Final = 0.05
_COPIES: Final = (
    "copies of personal_key_file that were made before still have the keys: destroy them\n"
)

_NEVER_MS: Final = 1 << 50
"""A time after all periods."""


def run_erase(
    flags: SourceFlags, scope: EraseFlags, manner: ChangeOptions, *, as_json: bool
) -> None:
    """Erase, list erasures, or search for a text; raises UsageError for contradictory flags."""
    scopes = (scope.topic, scope.client, scope.user, scope.check)
    if [scope.lists, *(each is not None for each in scopes)].count(True) != 1:
        raise UsageError("give one of --topic, --client, --user, --list and --check")
    if scope.places and scope.check is None:
        raise UsageError("--in is for --check")
    if scope.before is not None and scope.topic is None:
        raise UsageError("--before is for --topic")
    if scope.check is not None:
        check_places(flags, scope.check, scope.places or (), as_json=as_json)
    elif scope.lists:
        list_erasures(flags, as_json=as_json)
    elif as_json:
        raise UsageError("--json is for --list and --check")
    elif scope.topic is not None:
        erase(flags, scope.topic, scope.before, manner)
    elif scope.client is not None:
        erase_name(flags, "client", scope.client, manner)
    else:
        erase_name(flags, "user", scope.user or "", manner)


@run_to_end
async def erase(
    flags: SourceFlags, topic_filter: str, before: str | None, manner: ChangeOptions
) -> None:
    """Erase the contents of the topics that match, and print what was erased.

    ``before``: only those of periods that ended before this time. Raises UsageError for an invalid
    filter or time, Refused if nothing matches, NoAnswer if the result is unknown.
    """
    check_filter(topic_filter)
    before_ms = 0
    if before is not None:
        before_ms = parse_point(before).time_ms or 0
        if not before_ms:
            raise UsageError(f"--before {text.escaped(before)}: must be a time, not a position")
    scope: dict[str, Any] = {"filter": topic_filter, "before_ms": before_ms}
    async with open_brokers(flags) as brokers:
        _check_all(brokers)
        plans = await brokers.each(lambda broker: broker.ask("erasures", **scope))
        receiving = await brokers.each(
            lambda broker: broker.ask("erasures.receivers", filter=topic_filter)
        )
        receivers = sorted({name for _, each in receiving for name in each["receivers"]})
        broker, plan = max(plans, key=lambda each: int(each[1]["total"]))
        matching = text.name(topic_filter)
        left = _left(max((each for _, each in plans), key=itemgetter("left_until_ms")))
        if not plan["total"]:
            if before_ms:
                raise Refused(
                    f"no sealed contents of {matching} are in a period that ended before "
                    f"{text.clock(before_ms)}{left and f': {left}'}"
                )
            raise Refused(f"no topic with sealed contents matches {matching}")
        listed = sorted({topic for _, each in plans for topic in each["topics"]})
        topics = text.count_of(max(len(listed), plan["total"]), "topic")
        ended = f" in periods that ended before {text.clock(before_ms)}" if before_ms else ""
        what = f"erase the contents of {topics}{ended} for ever"
        if not await confirmed([f"  {text.name(topic)}" for topic in listed], what, manner):
            if left:
                sys.stderr.write(f"foldmq: {left}\n")
            sys.stderr.write(_sent_before(receivers))
            return
        try:
            done = await broker.ask("change", do="erase", by=operator_name(), **scope)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; the contents may still be erased: try again") from None
        if brokers.several:
            await _until_followed(brokers)
    in_all = f" in all logs, in {broker.node}" if brokers.several else ""
    numbers = ", ".join(map(str, done["erasures"]))
    noun = "erasure" if len(done["erasures"]) == 1 else "erasures"
    sys.stdout.write(
        f"erased{in_all}: {text.count_of(done['keys'], 'key')}, "
        f"{text.count_of(done['retained'], 'retained message')} ({noun} {numbers})\n"
        + (f"{left}\n" if left else "")
        + _COPIES
        + _sent_before(receivers)
    )
    for log in map(text.name, brokers.absent):
        sys.stdout.write(
            f"log {log} does not answer: it erases before it serves clients again; until then, new "
            "contents of these topics may be erased, too\n"
        )
    brokers.check_complete()


@run_to_end
async def erase_name(flags: SourceFlags, kind: str, name: str, manner: ChangeOptions) -> None:
    """Erase a name that has a token, and print what was erased; ``kind``: client or user.

    Raises UsageError if it has none, NoAnswer if the result is unknown.
    """
    scope, shown = {"kind": kind, "name": name}, text.name(name)
    async with open_brokers(flags) as brokers:
        _check_all(brokers)
        plans = await brokers.each(lambda broker: broker.ask("erasures.name", **scope))
        logs = plans[0][1].get("logs", 1)  # an earlier version says nothing of it
        if not brokers.several and logs > 1:
            raise UsageError(
                f"--{kind}: the broker has {logs} logs, which all have names: give --config or "
                "--data-dir"
            )
        known = [(broker, plan) for broker, plan in plans if plan["token"] is not None]
        away = [*brokers.absent]
        if kind == CLIENT and brokers.several:  # the other logs have no token of it
            away = [log for log in away if log == log_of_session(brokers.logs, scope["name"])]
        if not known and not away:
            raise UsageError(
                f"--{kind} {shown}: has no token: personal_{kind}s never matched it at a login, or "
                "it was erased"
            )
        sessions = text.count_of(sum(plan["total"] for _, plan in known), "session")
        tokens = ", ".join(plan["token"] for _, plan in known) or f"a {kind}"
        what = f"erase the name of {tokens} for ever, and end {sessions}"
        names = [text.name(session) for _, plan in known for session in plan["sessions"]]
        done: list[tuple[str, dict[str, Any]]] = []
        if await confirmed([f"  {name}" for name in names], what, manner):
            request = {"do": "erase", "by": operator_name(), **scope}
            try:
                if away:  # first, so that it is not forgotten
                    await plans[0][0].ask("change", logs=away, **request)
                for broker, _ in known:
                    answer = await broker.ask("change", **request)
                    done.append((f" in {broker.node}" if brokers.several else "", answer))
            except (NoAnswer, NoLiveBroker) as error:
                again = f"{error}; the name may still be erased: try again"
                raise type(error)(again) from None
            for log in map(text.name, away):
                sys.stdout.write(
                    f"log {log} does not answer: it erases the name before it serves clients "
                    "again\n"
                )
    for place, answer in done:
        sys.stdout.write(
            f"erased{place}: {answer['token']}, {text.count_of(answer['sessions'], 'session')} "
            f"(erasure {answer['erasures'][0]})\n"
        )
    if done:
        sys.stdout.write(_COPIES)
    if away:
        brokers.check_complete()


def _check_all(brokers: LogBrokers) -> None:
    """Raise UsageError if one of several logs was chosen."""
    if len(brokers.logs) > 1 and not brokers.several:
        raise UsageError("an erasure is one of all logs: leave --node out")


def _left(plan: dict[str, Any]) -> str:
    """Return what remains of the time for which an erasure was asked; empty: nothing."""
    if not plan["left"]:
        return ""
    topics = text.count_of(plan["left"], "topic")
    if plan["left_until_ms"] > _NEVER_MS:
        return f"contents of {topics} from before that time remain: their keys have no period"
    return (
        f"contents of {topics} from before that time remain, in periods that end by "
        f"{text.clock(plan['left_until_ms'])}: erase --before that time erases them, too"
    )


async def _until_followed(brokers: LogBrokers) -> None:
    """Wait until each log that answers has erased what it had, and what it took meanwhile.

    Raises NoAnswer.
    """
    until = time.monotonic() + _LONGEST
    for _ in range(2):  # what others request, and what they took before they followed
        ends: dict[str, int] = {}
        while True:
            answers = {
                broker.node: answer
                for broker, answer in await brokers.each(
                    lambda broker: broker.ask("erasures.progress")
                )
            }
            ends = ends or {node: answer["durable"] for node, answer in answers.items()}
            if not any(
                answer["pending"]
                or any(answer["taken"].get(other, end) < end for other, end in ends.items())
                for answer in answers.values()
            ):
                break
            if time.monotonic() > until:
                raise NoAnswer("not all logs have erased the contents yet, but they will")
            await asyncio.sleep(_AGAIN)


def _sent_before(receivers: list[str]) -> str:
    """Return a line with the destinations that may have contents; empty: there are none."""
    if not receivers:
        return ""
    names = ", ".join(map(text.name, receivers))
    return f"what was sent to these destinations before is not erased there: {names}\n"


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


_INCOMPLETE = 74
"""Exit code if nothing was found, but something could not be searched."""
_PARQUET = "cli.spark.parquet_contents"
_PATH = 4096
"""Characters of a path that are shown."""
_NEVER = (
    "never searched: contents that are sealed under a key that exists, the memory of programs, "
    "and what subscribers received"
)


def check_places(flags: SourceFlags, wanted: str, places: Sequence[str], *, as_json: bool) -> None:
    """Search the files of a broker, and ``places``, for a text; ``-``: a line of standard input.

    Raises typer.Exit(1) if it is there, and NoLog or UsageError.
    """
    if wanted == "-":
        wanted = sys.stdin.readline().rstrip("\r\n")
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    search = TextSearch(wanted, store_key(settings.encryption_key_file), _columns())
    for place in places:
        if "://" in place:
            raise UsageError("--in: buckets cannot be searched: copy them into a directory first")
        if not Path(place).exists():
            raise UsageError(f"--in {place}: does not exist")
    searched = [Path(place) for place in places]
    if settings.data_dir.is_dir():
        searched.insert(0, settings.data_dir)
    elif settings.nats_url is None:
        raise NoLog(f"data directory {settings.data_dir}: does not exist")
    for path in searched:
        search.place(path)
    where = [str(path) for path in searched]
    if settings.nats_url is not None:
        where += asyncio.run(_records(flags, search))
    if as_json:
        sys.stdout.write(text.json_line(_fields(search, where)) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(search, where)))
    if search.hits:
        raise typer.Exit(1)
    if search.skipped:
        raise typer.Exit(_INCOMPLETE)


async def _records(flags: SourceFlags, search: TextSearch) -> list[str]:
    """Search the records of a log whose files are elsewhere; return what was searched."""
    async with open_logs(flags) as logs:
        for source in logs.values():
            async for sequence, data in source.stored(source.begin, source.last):
                search.data(f"{source.stream} record {sequence}", data)
            search.skipped.append((source.where, "of its files only the log's records were read"))
        return [f"{source.stream} on {source.where}" for source in logs.values()]


def _columns() -> Callable[[Path], Iterable[bytes]] | None:
    """Return what reads Parquet files; None: it is not installed."""
    try:
        # By name, as commands are loaded: the packages of Spark depend on this one.
        contents: Callable[[Path], Iterable[bytes]] = import_module(_PARQUET).contents
    except ImportError:
        return None
    return contents


def _lines(search: TextSearch, where: Sequence[str]) -> Iterator[str]:
    files = text.count_of(search.files, "file")
    yield (
        f"searched {files}, {text.size(search.bytes)}, in {len(search.forms)} forms: "
        + ", ".join(text.escaped(place, _PATH) for place in where)
    )
    for hit in search.hits:
        forms = ", ".join(f"{form} ({count:,})" for form, count in hit.forms.items())
        yield f"found: {text.escaped(hit.place, _PATH)}: {forms}"
    for place, why in search.skipped:
        yield f"not searched: {text.escaped(place, _PATH)}: {text.escaped(why)}"
    if not search.hits:
        yield "found nowhere" + (" that was searched" if search.skipped else "")
    yield _NEVER


def _fields(search: TextSearch, where: Sequence[str]) -> dict[str, Any]:
    return {
        "searched": list(where),
        "files": search.files,
        "bytes": search.bytes,
        "found": [{"place": hit.place, "forms": hit.forms} for hit in search.hits],
        "not_searched": [{"place": place, "why": why} for place, why in search.skipped],
    }
