"""Problems of the broker itself in sentences: its log, the disk, replicas, limits."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from nats.aio.client import Client

from cli.commands.advice import Advice, Severity
from cli.commands.certificate_advice import advise_on_certificates
from cli.commands.status import followers, time_off
from cli.common import text
from cli.logs.next_commands import SERVER_LOG
from eventstore.format.positions import format_position
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.nats.jetstream import read_info
from projections.log_proof import REACHED
from protocol.errors import FoldmqError

_WEEK: Final = 7 * 86_400.0
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_BEHIND_MS, _LONG_BEHIND_MS = 5_000, 60_000
"""Milliseconds that another log's records wait, from which this is a warning, and a problem."""
_LITTLE: Final = 10**9
"""Free bytes below which the disk is nearly full."""
_MIN_SECONDS: Final = 60.0
"""Minimum uptime in seconds for a known rate of writing."""


_SLOW_COMMIT, _SLOW_DISK_DELAY, _ENOUGH_RECORDS = 0.006, 0.01, 1000
"""Seconds until a record is on disk, from which a longer ``commit_delay`` is worth it; that delay;
and number of records from which that is known."""


def _is_slow_disk(status: Mapping[str, Any]) -> bool:
    """Return whether most records were on disk late, and messages hardly wait for each other."""
    commit, delay = status.get("commit"), (status.get("log") or {}).get("commit_delay")
    if not commit or delay is None or delay >= _SLOW_DISK_DELAY:
        return False
    counts = zip(commit["bounds"], commit["counts"], strict=False)
    quick = sum(count for bound, count in counts if bound <= _SLOW_COMMIT)
    return bool(commit["count"] >= _ENOUGH_RECORDS and 2 * quick < commit["count"])


def advise_on_broker(status: Mapping[str, Any], behind: Iterable[str]) -> Iterator[Advice]:
    """Yield the problems of a broker, without those of the disk.

    ``status`` is its reply to ``status``, ``behind`` describes the replicas of the log that are
    behind.
    """
    damage = (status.get("log") or {}).get("store_damage")
    if damage is not None:
        yield Advice(
            "problem",
            "the store",
            "lost files of the log",
            text.escaped(damage, 500),
            "files were removed, replaced or cut short beside the broker, or their disk was "
            "unmounted; nothing is acknowledged, and the broker goes on if they come back",
            "foldmq status",
        )
    elif (record := (status.get("log") or {}).get("damage")) is not None:
        yield Advice(
            "problem",
            "the log",
            "is damaged",
            text.escaped(record, 500),
            "the disk or a program has changed or removed bytes of it; the state is intact, but "
            "the broker ends when it needs a message of a damaged record: restore a backup, or "
            "stop the broker and use foldmq salvage",
            "foldmq log verify",
        )
    for reason in status["trouble"]:
        if damage is not None and reason.endswith(damage):
            continue
        yield Advice(
            "problem",
            "the broker",
            "does not serve clients fully",
            text.escaped(str(reason), 500),
            "see its log messages",
            SERVER_LOG,
        )
    overload = status.get("overload")
    if overload and not (overload == "commit_latency" and status["trouble"]):
        yield Advice(
            "problem",
            "the broker",
            "is overloaded",
            text.escaped(str(overload), 300),
            "clients cause more work than the processor or the disk can handle",
            "foldmq top",
        )
    yield from _advise_on_reload(status, "the broker", "foldmq reload")
    up = status["time_ms"] - status["started_ms"]
    if status.get("crashed_ms") and up < _HOUR_MS:
        lasted = time_off(status)
        yield Advice(
            "warning",
            "the broker",
            "started after a crash",
            f"it started {text.duration(up)} ago; the previous run did not end cleanly, its last "
            f"write was {lasted} before that",
            "the broker failed or was killed (kill -9, out of memory), or the machine stopped; "
            + REACHED,
            SERVER_LOG,
        )
    for doubt in (status.get("log") or {}).get("not_proven", ()):
        yield _advise_on_doubt(doubt, status["time_ms"])
    erasures = status.get("erasures") or {}
    if erasures.get("pending"):
        yield Advice(
            "problem" if erasures["trouble"] else "warning",
            "an erasure",
            "is not finished",
            text.escaped(erasures["trouble"], 500) or "it was requested, and its keys still exist",
            "its contents are no longer sent, but whoever reads personal_key_file can still open "
            "them: mend the file or its disk; the next foldmq erase, or start, destroys the keys",
            "foldmq erase --list",
        )
    yield from _advise_on_other_logs(status)
    jump = (status.get("clock") or {}).get("last")
    if jump is not None and jump["age_ms"] < _HOUR_MS:
        yield _clock_advice(jump)
    if _is_slow_disk(status):
        yield Advice(
            "notice",
            "the log",
            "is on a slow disk",
            f"most records took more than {_SLOW_COMMIT * 1000:.0f} ms to be on disk",
            "each record waits for the disk, as with an SD card: messages that wait for others "
            f"share records (setting commit_delay = {_SLOW_DISK_DELAY * 1000:.0f}ms), which saves "
            "most of the writes",
            "foldmq status",
        )
    for line in behind:
        yield Advice(
            "problem",
            "the log",
            "has a replica that is behind",
            line,
            "its server is down, unreachable or slow; until it has caught up, fewer failures are "
            "survived",
            "nats server report jetstream",
        )


def advise_on_followers(statuses: Iterable[Mapping[str, Any]]) -> Iterator[Advice]:
    """Yield the problems of the nodes of a cluster that do not lead."""
    for node in followers(statuses):
        name = f"node {text.name(node['node'])}"
        command = f"foldmq nodes --cluster {node['cluster']}"
        yield from _advise_on_reload(node, name, command)
        for advice in advise_on_certificates([node]):
            yield advice._replace(
                subject=f"{advice.subject} at {name}",
                cause=f"{advice.cause}, on the machine of that node (a follower reloads on SIGHUP)",
                next=command,
            )


def _advise_on_reload(status: Mapping[str, Any], subject: str, command: str) -> Iterator[Advice]:
    reload = status.get("reload")
    if reload is not None and reload["error"]:
        ago = text.duration(status["time_ms"] - reload["time_ms"])
        yield Advice(
            "problem",
            subject,
            "did not take its new settings",
            f"{text.escaped(reload['error'], 500)}; {ago} ago",
            "a setting or a file that it names is invalid: the previous settings, users, "
            "permissions and certificates stay in effect until it is repaired and a reload "
            "succeeds",
            f"{check} && {command}" if (check := str(reload.get("check") or "")) else command,
        )


def _advise_on_other_logs(status: Mapping[str, Any]) -> Iterator[Advice]:
    for row in status.get("other_logs") or ():
        behind_ms = row["behind_ms"]
        if behind_ms >= _BEHIND_MS:
            yield Advice(
                "problem" if behind_ms >= _LONG_BEHIND_MS else "warning",
                "the log",
                f"is behind log {text.name(row['log'])}",
                f"{text.count_of(row['records'], 'record')} of it, some for "
                f"{text.duration(behind_ms)}, were not taken",
                "its broker has too little processor time, or cannot read the other log: its "
                "clients get the messages of that log's clients late",
                "foldmq status",
            )


_STATE_DIFFERS: Final = ", and the state of sessions may differ from what their clients know"


def _advise_on_doubt(doubt: Mapping[str, Any], now_ms: int) -> Advice:
    """Return advice on a part of the log about which nothing can be said.

    After a day it is a notice, until the log is cut behind it.
    """
    missing = doubt["missing"]
    recent = now_ms - doubt["seen_ms"] < _DAY_MS
    severity: Severity = "notice"
    if recent:
        severity = "problem" if missing else "warning"
    return Advice(
        severity,
        "the log",
        "lacks records" if missing else "may lack records",
        text.escaped(str(doubt["text"]), 1000),
        "what was acknowledged in that time may be lost"
        + ("" if doubt.get("settled") else _STATE_DIFFERS),
        f"foldmq log --from {doubt['at']}.0 -n 3",
    )


def _clock_advice(jump: Mapping[str, Any]) -> Advice:
    size, age = text.duration(abs(jump["ms"])), text.duration(jump["age_ms"])
    direction = "forward" if jump["ms"] > 0 else "back"
    if jump["seen"] == "running":
        cause = "the clock of the machine was corrected or set"
    elif jump["ms"] < 0:
        cause = "at the start it was behind the last record of the log"
    else:
        cause = (
            "at the start the last record of the log was older than max_clock_gap: the broker was "
            "off for that long, or the clock is wrong; if it is right, foldmq confirm-clock "
            "removes the sessions that should have expired, and with max_clock_gap = 0 any time "
            "counts at later starts"
        )
    return Advice(
        "warning",
        "the clock",
        f"jumped {direction} by {size}",
        f"{age} ago, recorded at {format_position(jump['position'])}",
        f"{cause}; nothing expired because of it, but times in the log are not continuous",
        "foldmq log --type ClockJumped",
    )


def advise_on_disk(
    statuses: Iterable[Mapping[str, Any]], limits: Iterable[Mapping[str, Any]]
) -> Iterator[Advice]:
    """Yield advice if the disk is nearly full, or will be before the logs on it are cut.

    ``statuses`` and ``limits`` are the replies to ``status`` and ``problems`` of the brokers whose
    logs are on the disk.
    """
    free: int | None = None
    total, needed = 0.0, 0.0
    for status, limit in zip(statuses, limits, strict=True):
        log, seconds = status["log"], (status["time_ms"] - status["started_ms"]) / 1000
        if log.get("disk_free") is None:
            return
        free = log["disk_free"]
        rate = log["bytes"] / seconds if seconds >= _MIN_SECONDS else 0.0
        total += rate
        needed += growth(rate, log.get("stream_bytes") or 0, limit)
    if free is None:
        return
    evidence = f"{text.size(free)} are free"
    if total:
        evidence += f"; the log grows by {text.size(round(total * 3600))} an hour"
    seconds_left = free / total if needed > free else None
    if seconds_left is not None:
        evidence += f": full in {text.duration(round(seconds_left * 1000))}"
    if free < _LITTLE or (seconds_left is not None and seconds_left < _WEEK):
        urgent = free < _LITTLE or (seconds_left is not None and seconds_left < _WEEK / 7)
        yield Advice(
            "problem" if urgent else "warning",
            "the disk",
            "runs out",
            evidence,
            "the log is kept longer than the disk has room for (settings keep, keep_bytes); on a "
            "full disk nothing is acknowledged",
            "foldmq log usage",
        )


def growth(rate: float, held: int, limits: Mapping[str, Any]) -> float:
    """Return the bytes by which a log will still grow; infinite if it is not cut.

    ``held`` are the bytes of the log, ``rate`` is in bytes per second.
    """
    if rate <= 0:
        return 0.0
    most = float("inf")
    if not limits.get("keep_until_archived"):
        if limits.get("keep_s"):
            most = rate * limits["keep_s"]
        if limits.get("keep_bytes"):
            most = min(most, float(limits["keep_bytes"]))
    return max(0.0, most - held)


async def lagging_replicas(client: Client, node: str) -> list[str]:
    """Return a sentence for each replica of the log that is behind, and for a missing leader."""
    stream = LOG_STREAM_PREFIX + node
    try:
        info = await read_info(client, stream)
    except FoldmqError as error:
        return [str(error)]
    cluster = info.get("cluster") or {}
    count = (info.get("config") or {}).get("num_replicas", 1)
    sentences = []
    if count > 1 and not cluster.get("leader"):
        sentences.append(f"stream {stream} has no leader: nothing is acknowledged")
    for replica in cluster.get("replicas") or ():
        name = text.escaped(str(replica.get("name")))
        lag = replica.get("lag") or 0
        behind = f"{text.count_of(lag, 'record')} behind"
        if replica.get("offline"):
            sentences.append(f"the replica on server {name} is offline, {behind}")
        elif not replica.get("current", True):
            sentences.append(f"the replica on server {name} is {behind}")
    return sentences
