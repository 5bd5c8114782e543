"""``foldmq status``: a running broker on one screen."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from cli.common import painted, text
from cli.inspection import log_broker
from cli.live import open_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cli.logsource import SourceFlags

_LABEL = 15


def print_status(flags: SourceFlags, *, as_json: bool) -> bool:
    """Print the status; return whether the broker is ready."""
    return asyncio.run(_run(flags, as_json=as_json))


async def _run(flags: SourceFlags, *, as_json: bool) -> bool:
    async with open_broker(flags) as broker:
        if flags.verbose:
            log_broker(broker)
        found = await broker.ask("status", topics=False)
        where = broker.where
    if as_json:
        sys.stdout.write(text.json_line(found) + "\n")
    else:
        for line in status_lines(found, where):
            sys.stdout.write(line + "\n")
    return bool(found["ready"])


def status_lines(found: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield a status as text."""
    up = text.duration(found["time_ms"] - found["started_ms"])
    ready = (
        painted("ready", "green", sys.stdout)
        if found["ready"]
        else painted("not ready", "red", sys.stdout)
    )
    yield f"{ready}: node {text.escaped(str(found['node']))}, up {up}"
    for reason in found["trouble"]:
        yield painted(f"  {text.escaped(str(reason), 300)}", "red", sys.stdout)
    software = text.escaped(str(found["software"]))
    yield f"  {'broker'.ljust(_LABEL)}foldmq {software}, process {found['pid']}, {where}"
    if found.get("epoch"):
        leads = f"leads in epoch {found['epoch']:,}; foldmq nodes lists the others"
        yield f"  {'cluster'.ljust(_LABEL)}{leads}"
    for label, said in _facts(found):
        yield f"  {label.ljust(_LABEL)}{said}"


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    connections, sessions = found["connections"], found["sessions"]
    census, log = found["census"], found["log"]
    paused = f", {connections['paused']:,} not read now" if connections["paused"] else ""
    yield "connections", f"{connections['open']:,} of at most {connections['limit']:,}{paused}"
    away = sessions["total"] - sessions["connected"]
    yield "sessions", f"{sessions['connected']:,} connected, {away:,} offline"
    yield "subscriptions", f"{found['subscriptions']:,}"
    retained = found["retained"]
    yield (
        "retained",
        f"{text.count_of(retained['count'], 'message')}, {text.size(retained['bytes'])}",
    )
    for label, name in (("received", "in"), ("sent", "out")):
        by_qos = found["messages"][name]
        listed = " / ".join(f"{count:,}" for count in by_qos)
        yield label, f"{text.count_of(sum(by_qos), 'message')} (QoS 0 / 1 / 2: {listed})"
    unacknowledged = census["inflight"] + census["releasing"]
    queued = text.count_of(census["queued"], "message")
    size = text.size(census["queued_bytes"])
    yield "waiting", f"{queued} queued ({size}), {unacknowledged:,} sent and not acknowledged"
    dropped = {reason: count for reason, count in found["dropped"].items() if count}
    listed = ", ".join(f"{text.escaped(reason)} {count:,}" for reason, count in dropped.items())
    yield "dropped", f"{sum(dropped.values()):,}" + (f" ({listed})" if listed else "")
    size = log.get("stream_bytes")
    stored = "size not known yet" if size is None else text.size(size)
    free = log.get("disk_free")
    room = "" if free is None else f", {text.size(free)} free on the disk"
    yield "log", f"records {log['first']:,} to {log['durable']:,}, {stored}{room}"
    process = found["process"]
    yield (
        "process",
        f"{text.size(process['rss'])} of memory, {process['cpu_s']:,.0f} s of processor",
    )
