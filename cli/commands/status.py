"""``foldmq status``: a running broker on one screen."""

import contextlib
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.commands.certificate_advice import advise_on_certificates, certificate_line
from cli.commands.outbox_advice import destinations_text
from cli.common import text
from cli.common.colour import Style, painted
from cli.common.tables import Cell, Column, Table
from cli.logs.broker_client import LiveBroker
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.next_commands import completed
from cli.logs.source_flags import SourceFlags, run_to_end
from cluster.status import Role, decode_status
from eventstore.datadir import DataDir
from eventstore.nats.cluster_messages import ask_nodes
from eventstore.reasons import dropped_by
from projections.log_proof import REACHED

Status = dict[str, Any]

_LABEL = 15
_NODES_SECONDS = 0.3
"""Seconds in which the nodes of a cluster answer."""
_WIDTH = 80
"""Maximum width of a line that is not of a table, unless it is a single word."""


@run_to_end
async def print_status(flags: SourceFlags, *, as_json: bool) -> bool:
    """Print the status; return whether the broker is ready.

    Raises NoLiveBroker if the broker of one of several logs does not answer.
    """
    async with open_brokers(flags) as brokers:
        statuses = await ask_statuses(brokers)
    ready = all(report["ready"] for report in statuses) and not brokers.absent
    if as_json:
        sys.stdout.write(text.json_line(status_object(statuses, brokers)) + "\n")
    else:
        for line in status_lines(statuses, brokers):
            sys.stdout.write(line + "\n")
        if brokers.several:
            _table(statuses, brokers)
    brokers.check_complete()
    return ready


def status_object(statuses: Sequence[Status], brokers: LogBrokers) -> Status:
    """Return the statuses of the brokers that answer as a JSON object."""
    if not brokers.several:
        return statuses[0]
    ready = all(report["ready"] for report in statuses) and not brokers.absent
    return {"ready": ready, "logs": statuses, "not_answering": list(brokers.absent)}


async def ask_statuses(brokers: LogBrokers) -> list[Status]:
    """Return the status of each broker that answers; in a cluster it names the nodes that follow.

    Of a node that leads a log, its broker reports the rest.
    """

    async def ask(broker: LiveBroker) -> Status:
        status = await broker.ask("status", topics=False)
        if status.get("epoch"):
            answers = await ask_nodes(broker.client, broker.node, _NODES_SECONDS)
            _, hyphen, number = broker.log.rpartition("-p")
            of_log = hyphen + number if hyphen else ""
            status["nodes"] = [
                {
                    "node": node.node.removesuffix(of_log),
                    "cluster": broker.node.removesuffix(of_log),
                    "leads": node.role is Role.LEADING,
                    "time_ms": node.time_ms,
                    "certificates": node.certificates,
                    "reload": node.reload or None,
                }
                for node in map(decode_status, answers)
                if node is not None
            ]
        return status

    statuses = [status for _, status in await brokers.each(ask)]
    add_free_space(statuses, brokers.directory)
    return statuses


def followers(statuses: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a cluster that lead none of these logs, each once, by name."""
    nodes = [node for status in statuses for node in status.get("nodes", ())]
    leaders = {node["node"] for node in nodes if node["leads"]}
    by_name = {node["node"]: node for node in nodes if node["node"] not in leaders}
    yield from (by_name[name] for name in sorted(by_name))


def status_lines(statuses: Sequence[Status], brokers: LogBrokers) -> Iterator[str]:
    """Yield the statuses of the brokers that answer as text, added up."""
    total, several = added_up(statuses), brokers.several
    of_log = [(brokers.prefix(status["node"]), status) for status in statuses]
    yield f"{_ready(total['ready'] and not brokers.absent)}: {_title(total, brokers)}"
    for node in brokers.absent:
        yield _problem(f"log {text.name(node)} does not answer: not included")
    for where, status in of_log:
        for reason in status["trouble"]:
            yield _problem(where + text.escaped(str(reason), 500))
    for where, status in of_log:
        yield from _failed_reload(status, where)
    yield from _ends(statuses)
    yield from _of_followers(statuses)
    for where, status in of_log:
        if status.get("crashed_ms"):
            yield _fact("start", where + crash_text(status))
        jump = (status.get("clock") or {}).get("last")
        if jump is not None:
            yield _fact("clock", where + jump_text(jump))
    software = ", ".join(sorted({text.escaped(str(report["software"])) for report in statuses}))
    process = "" if several else f", process {total['pid']}"
    yield _fact("broker", f"foldmq {software}{process}, {brokers.where}")
    if total.get("epoch") and not several:
        nodes = completed("foldmq nodes")
        leads = f"leads in epoch {total['epoch']:,}; {nodes} lists the others"
        yield _fact("cluster", leads)
    connections, sessions, log = total["connections"], total["sessions"], total["log"] or {}
    paused = f", {connections['paused']:,} paused" if connections["paused"] else ""
    limit = f"{connections['limit']:,}"
    most = f", at most {limit} for each log" if several else f" of at most {limit}"
    yield _fact("connections", f"{connections['open']:,}{most}{paused}")
    away = sessions["total"] - sessions["connected"] - sessions.get("logs", 0)
    offline = "offline or shared" if several else "offline"
    yield _fact("sessions", f"{sessions['connected']:,} connected, {away:,} {offline}")
    yield from _counters(total, "in each log" if several else "")
    yield from _dropped_lines(sum(status.get("lines_dropped", 0) for status in statuses))
    records = "" if several else f"records {log['first']:,} to {log['durable']:,}, "
    yield _fact("logs" if several else "log", records + _stored(log))
    for at_rest in sorted(
        {(report["log"] or {}).get("encryption") or "" for report in statuses} - {""}
    ):
        yield _fact("encryption", text.escaped(at_rest, 500))
    for where, status in of_log:
        yield from _proof(status, where)
        if status.get("destinations"):
            yield _fact("outbox", where + destinations_text(status["destinations"]))
    yield _fact("processes" if several else "process", _process(total))
    yield from _memory(total)


def _title(total: Status, brokers: LogBrokers) -> str:
    if brokers.several:
        return brokers.title
    return f"node {text.escaped(str(total['node']))}, up {_uptime(total)}"


def _uptime(status: Mapping[str, Any]) -> str:
    return text.duration(status["time_ms"] - status["started_ms"])


def _dropped_lines(count: int) -> Iterator[str]:
    """Yield a line if lines of the broker's log were lost."""
    if count:
        lines = text.count_of(count, "line")
        yield _fact("stderr", f"{lines} of the broker's log dropped, because it was not read")


def crash_text(status: Mapping[str, Any]) -> str:
    """Return that the previous run of a broker crashed, as text."""
    lasted = time_off(status)
    return (
        f"after a crash: the previous run did not end cleanly, its last write was {lasted} before "
        f"this start; {REACHED}"
    )


def time_off(status: Mapping[str, Any]) -> str:
    """Return how long before its start a broker had last written, as text."""
    off = status.get("off_ms")
    if off is None:  # a broker of an older version
        off = status["started_ms"] - status["crashed_ms"]
    return text.duration(off) if off > 0 else "an unknown time (the clock was set back)"


def _proof(status: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield what is damaged in a log, and what cannot be said about it."""
    log = status.get("log") or {}
    if log.get("damage"):
        yield _fact("damaged", where + text.escaped(log["damage"], 500))
    for doubt in log.get("not_proven", ()):
        yield _fact("not proven", where + text.escaped(str(doubt["text"]), 1000))
    if log.get("unsure"):
        yield _fact("not certain", where + text.escaped(log["unsure"], 2000))


def _failed_reload(status: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield a line if the last reload of the settings failed."""
    reload = status.get("reload")
    if reload is not None and reload["error"]:
        ago = text.duration(status["time_ms"] - reload["time_ms"])
        why = text.escaped(reload["error"], 500)
        yield _problem(f"{where}settings not reloaded {ago} ago: {why}")


def jump_text(jump: Mapping[str, Any]) -> str:
    """Return the last jump of a broker's clock as text."""
    direction = "forward" if jump["ms"] > 0 else "back"
    when = "" if jump["seen"] == "running" else ", seen at the start"
    return (
        f"jumped {direction} by {text.duration(abs(jump['ms']))} {text.duration(jump['age_ms'])} "
        f"ago{when}; nothing expired because of it ({completed('foldmq log --type ClockJumped')})"
    )


def _of_followers(statuses: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the same for the nodes of a cluster that do not lead."""
    for node in followers(statuses):
        where = f"node {text.name(node['node'])}: "
        yield from _failed_reload(node, where)
        yield from _ends([node], where)


def _ends(
    statuses: Sequence[Status] | Sequence[Mapping[str, Any]], where: str = ""
) -> Iterator[str]:
    """Yield a line for each certificate that has expired, will soon, or is not valid yet."""
    for advice in advise_on_certificates(statuses):
        colour: Style = "red" if advice.severity == "problem" else "yellow"
        lines = _lines(f"  {where}{certificate_line(advice)}", "    ")
        yield "\n".join(painted(line, colour, sys.stdout) for line in lines)


def _table(reports: Sequence[Status], brokers: LogBrokers) -> None:
    """Print a row for each log, also for one whose broker does not answer."""
    statuses = {status["node"]: status for status in reports}
    epochs = any(status.get("epoch") for status in reports)
    epoch: Column[Mapping[str, Any]] = Column(
        "EPOCH", lambda row: row.get("epoch"), right=True, least_width=120
    )
    table: Table[Mapping[str, Any]] = Table(
        [
            Column("LOG", lambda row: row["node"]),
            Column("STATE", _state, style=lambda row: "green" if row.get("ready") else "red"),
            Column("UP", _answered(_uptime), right=True, wide=True),
            Column("PID", lambda row: row.get("pid"), right=True, least_width=150),
            *([epoch] if epochs else []),
            Column("CONNECTIONS", _answered(lambda row: row["connections"]["open"]), right=True),
            Column("SUBSCR.", lambda row: row.get("subscriptions"), right=True, least_width=120),
            Column(
                "IN FLIGHT",
                _answered(lambda row: row["census"]["in_flight"]),
                right=True,
                wide=True,
            ),
            Column("QUEUED", _answered(lambda row: row["census"]["queued"]), right=True),
            Column("DROPPED", _answered(lambda row: sum(row["dropped"].values())), right=True),
            Column(
                "RECORDS",
                _answered(lambda row: f"{row['log']['first']}-{row['log']['durable']}"),
                right=True,
                least_width=150,
            ),
            Column(
                "SIZE", _answered(lambda row: _size(row["log"].get("stream_bytes"))), right=True
            ),
            Column("MEMORY", _answered(lambda row: _size(row["process"]["rss"])), right=True),
        ]
    )
    sys.stdout.write("\n")
    for node in brokers.nodes:
        table.add(statuses.get(node, {"node": node}))
    table.close()


def _state(row: Mapping[str, Any]) -> str:
    if "ready" not in row:
        return "no answer"
    return "ready" if row["ready"] else "not ready"


def _answered(
    cell: Callable[[Mapping[str, Any]], Cell],
) -> Callable[[Mapping[str, Any]], Cell]:
    """Return the cell of a column; empty in rows of brokers that do not answer."""
    return lambda row: cell(row) if "ready" in row else None


def _size(count: int | None) -> str | None:
    return None if count is None else text.size(count)


def _ready(ready: bool) -> str:
    return (
        painted("ready", "green", sys.stdout) if ready else painted("not ready", "red", sys.stdout)
    )


def _fact(label: str, sentence: str) -> str:
    begin = f"  {label.ljust(_LABEL)}"
    return "\n".join(_lines(begin + sentence, " " * len(begin)))


def _detail(sentence: str) -> str:
    begin = " " * (_LABEL + 2)
    return "\n".join(_lines(begin + sentence, begin + "  "))


def _problem(sentence: str) -> str:
    lines = _lines(f"  {sentence}", "    ")
    return "\n".join(painted(line, "red", sys.stdout) for line in lines)


def _lines(sentence: str, indent: str) -> list[str]:
    return textwrap.wrap(
        sentence,
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counters(status: Mapping[str, Any], where_retained: str = "") -> Iterator[str]:
    """Yield what can be added up for several logs."""
    census = status["census"]
    yield _fact("subscriptions", f"{status['subscriptions']:,}")
    retained = status["retained"]
    kept = f"{text.count_of(retained['count'], 'message')}, {text.size(retained['bytes'])}"
    yield _fact("retained", f"{kept}, {where_retained}" if where_retained else kept)
    for label, way in (("received", "in"), ("sent", "out")):
        by_qos = status["messages"][way]
        listed = " / ".join(f"{count:,}" for count in by_qos)
        count = text.count_of(sum(by_qos), "message")
        yield _fact(label, f"{count} (QoS 0 / 1 / 2: {listed})")
    unacknowledged = census["in_flight"] + census["releasing"]
    queued = text.count_of(census["queued"], "message")
    size = text.size(census["queued_bytes"])
    yield _fact(
        "waiting", f"{queued} queued ({size}), {unacknowledged:,} sent and not acknowledged"
    )
    dropped = sum(status["dropped"].values())
    yield _fact("dropped", text.count_of(dropped, "message"))
    for line in dropped_by(status["dropped"]):
        yield _detail(line)


def _stored(log: Mapping[str, Any]) -> str:
    size, free = log.get("stream_bytes"), log.get("disk_free")
    stored = "size not known yet" if size is None else text.size(size)
    if log.get("limit"):
        stored += f" of at most {text.size(log['limit'])}"
    return stored if free is None else f"{stored}, {text.size(free)} free on the disk"


def _memory(status: Mapping[str, Any]) -> Iterator[str]:
    for what, size in memory_parts(status):
        yield _detail(f"{text.size(size)}: {what}")


def _process(status: Mapping[str, Any]) -> str:
    process = status["process"]
    return f"{text.size(process['rss'])} of memory, {process['cpu_s']:,.0f} s of processor"


_SUMS = {
    "connections": ("open", "paused"),
    "sessions": ("total", "connected", "frozen", "logs"),
    "census": ("in_flight", "releasing", "queued", "queued_bytes"),
    "process": ("rss", "cpu_s"),
    "actors": ("total",),
}
_MEMORY = {
    "code": "programs and libraries",
    "runtime": "Python and settings",
    "connections": "connections",
    "sessions": "sessions",
    "subscriptions": "subscriptions",
    "retained": "retained messages",
    "queues": "queued and unacknowledged messages",
    "messages": "recent messages (at most 64 MiB)",
    "routes": "receivers of topics",
    "disk": "output and records that wait for the disk",
    "clients": "counters of clients",
    "rest": "free or not known",
}
"""What the memory of a broker is for, as in its status."""
_LOG_SUMS = ("pending_bytes", "gated_bytes")


def add_free_space(statuses: Sequence[Status], directory: Path | None) -> None:
    """Add the free space of the disk where the data directory is on this machine.

    A process that is one of several does not look at the disk.
    """
    if directory is None:
        return
    with contextlib.suppress(OSError):
        free = DataDir(directory).free_bytes()
        for status in statuses:
            if status["log"] is not None and status["log"].get("disk_free") is None:
                status["log"]["disk_free"] = free


def added_up(statuses: Sequence[Status]) -> Status:
    """Return the figures of some logs added up; the status of a single one is its own.

    The retained messages are those of the log that has most: each has all of them. Limits are the
    lowest of one log. A log that is being read has no figures of its own: if all are, there are
    none.
    """
    if len(statuses) == 1:
        return statuses[0]
    total: Status = {
        "ready": all(report["ready"] for report in statuses),
        "subscriptions": sum(report["subscriptions"] for report in statuses),
        "retained": max(
            (report["retained"] for report in statuses), key=lambda report: report["count"]
        ),
        "messages": {
            way: [
                sum(by_qos)
                for by_qos in zip(*(report["messages"][way] for report in statuses), strict=True)
            ]
            for way in ("in", "out")
        },
        "kernel": {
            "mailbox_high_water": max(report["kernel"]["mailbox_high_water"] for report in statuses)
        },
    }
    for part, names in _SUMS.items():
        # An earlier version does not tell how many sessions stand for other logs.
        total[part] = {
            name: sum(report[part].get(name, 0) for report in statuses) for name in names
        }
    for part in ("connections", "sessions"):
        total[part]["limit"] = min(
            (limit for report in statuses if (limit := report[part].get("limit"))), default=None
        )
    dropped: Counter[str] = Counter()
    for report in statuses:
        dropped.update(report["dropped"])
    total["dropped"] = dict(dropped)
    memory: Counter[str] = Counter()
    for report in statuses:
        memory.update(report.get("memory") or {})
    total["memory"] = dict(memory)
    total["destinations"] = [
        {**row, "log": status["node"]}
        for status in statuses
        for row in status.get("destinations") or ()
    ]
    total["log"] = _logs([report["log"] for report in statuses if report["log"] is not None])
    return total


def memory_parts(status: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return what the memory of a broker is for and how many bytes, the largest part first.

    Parts of less than a hundredth are left out; empty if the broker does not say.
    """
    memory = status.get("memory") or {}
    least = sum(memory.values()) // 100
    parts = [(_MEMORY.get(name, name), size) for name, size in memory.items() if size > least]
    return sorted(parts, key=lambda part: -part[1])


def _logs(logs: Sequence[Status]) -> Status | None:
    if not logs:
        return None
    sizes = [log.get("stream_bytes") for log in logs]
    free = [log.get("disk_free") for log in logs]
    return {
        **{name: sum(log[name] for log in logs) for name in _LOG_SUMS},
        "limit": sum(log.get("limit") or 0 for log in logs),
        "stream_bytes": None if None in sizes else sum(size or 0 for size in sizes),
        "disk_free": min((log for log in free if log is not None), default=None),
    }
