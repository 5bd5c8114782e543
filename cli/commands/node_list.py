"""``foldmq nodes`` and ``foldmq nodes move``: the nodes of a cluster, and which one leads."""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import typer

from cli.commands.actor_list import show
from cli.common import text
from cli.common.tables import Column
from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.source import external_access
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import load_log_settings
from cluster.status import NodeStatus, Role, decode_status
from eventstore.errors import UsageError
from eventstore.nats.cluster_messages import ask_nodes, ask_to_move
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.log_stream import read_partitions
from eventstore.partitions import partition_names
from protocol.errors import FoldmqError

_ANSWER_SECONDS = 0.3
_LEFT = ("certificates", "reload")
"""Fields that 'foldmq status' and 'foldmq doctor' show."""


def run(flags: SourceFlags, cluster: str | None, *, as_json: bool) -> None:
    """Print the nodes that answer; raises UsageError, NatsUnavailable or NoLiveBroker."""
    name, access = cluster_access(flags, cluster)

    async def ask() -> list[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as stack:
            client = await connect(access)
            stack.push_async_callback(disconnect, client)
            logs = await logs_of(client, name)
            answers = [ask_nodes(client, log, _ANSWER_SECONDS) for log in logs or [name]]
            members: list[dict[str, Any]] = []
            asked_ms = round(time.time() * 1000)  # most nodes answer within a few milliseconds
            for number, data in enumerate(await asyncio.gather(*answers)):
                statuses = [status for status in map(decode_status, data) if status is not None]
                nodes = rows(statuses, asked_ms)
                suffix = f"-p{number}"
                members += (
                    [
                        {**row, "log": number, "node": row["node"].removesuffix(suffix)}
                        for row in nodes
                    ]
                    if logs
                    else nodes
                )
            return members

    members = asyncio.run(ask())
    if not members:
        raise NoLiveBroker(
            f"no node of cluster {text.name(name)} answers on NATS at {access.where}: check that "
            "one is running and that this NATS user may send requests to it"
        )
    several = "log" in members[0]
    columns = _columns(several=several, problems=any(row["problem"] for row in members))
    show(members, len(members), "node", columns, as_json=as_json)


async def logs_of(client: DirectClient, cluster: str) -> list[str]:
    """Return the names of the logs of a cluster with several; none if it has one."""
    try:
        count = await read_partitions(client, cluster)
    except FoldmqError:  # this user may ask nodes only, or JetStream has no leader
        count = None
    return partition_names(cluster, count) if count is not None and count > 1 else []


def cluster_access(flags: SourceFlags, cluster: str | None) -> tuple[str, ConnectionOptions]:
    """Return the name of the cluster and its NATS server.

    Raises UsageError without them, ConfigError for a name that no cluster can have.
    """
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    name = cluster or settings.cluster
    if name is None or settings.nats_url is None:
        raise UsageError("give the cluster and its NATS server: --cluster NAME --nats-url URL")
    settings = load_log_settings({**flags.settings, "cluster": name}, os.environ, flags.config)
    return name, external_access(settings)


def rows(statuses: list[NodeStatus], asked_ms: int) -> list[dict[str, Any]]:
    """Return a row for each node that was asked at this Unix time, the leader first."""
    stored = max(
        (status.sequence for status in statuses if status.role is Role.LEADING), default=None
    )
    made = [
        {
            **{
                name: value
                for name, value in dataclasses.asdict(status).items()
                if name not in _LEFT
            },
            "behind": None if stored is None else max(0, stored - status.sequence),
            "clock_off_ms": status.time_ms - asked_ms,
        }
        for status in statuses
    ]
    return sorted(made, key=lambda row: (row["role"] != Role.LEADING, row["node"]))


def _columns(*, several: bool, problems: bool) -> list[Column[Mapping[str, Any]]]:
    log: Column[Mapping[str, Any]] = Column("LOG", lambda row: row["log"], right=True)
    problem: Column[Mapping[str, Any]] = Column("PROBLEM", lambda row: row["problem"] or None)
    return [
        *([log] if several else []),
        Column("NODE", lambda row: row["node"], name=True),
        Column("ROLE", lambda row: str(row["role"])),
        Column("EPOCH", lambda row: row["epoch"], right=True),
        Column("RECORD", lambda row: row["sequence"], right=True),
        Column("BEHIND", lambda row: row["behind"], right=True),
        Column("CLIENTS", _clients, right=True),
        Column("PARKED", lambda row: row["parked"] or None, right=True),
        Column("HOST", lambda row: row["host"], name=True),
        Column("PID", lambda row: row["pid"], right=True, wide=True),
        Column("VERSION", lambda row: row["version"], wide=True),
        Column("USERS", lambda row: row["users"] or None, wide=True),
        Column("PERMISSIONS", lambda row: row["permissions"] or None, wide=True),
        Column("LISTENS AT", lambda row: ", ".join(row["listen"]) or None, name=True),
        *([problem] if problems else []),
    ]


def _clients(row: Mapping[str, Any]) -> int | None:
    clients: int = row["clients"]
    return clients if row["role"] == Role.LEADING or row["listen"] else None


_MOVE_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_MOVED_SECONDS = 30.0
"""Seconds to wait for the new leader: the old one may have to write much."""


def move_leadership(flags: SourceFlags, cluster: str | None, to: str, log: int | None) -> None:
    """Ask the leader of a log to hand over, and wait until the other node leads.

    ``log`` is the number of the log, in a cluster with several. Raises UsageError, NatsUnavailable,
    NoLiveBroker and Refused.
    """
    name, access = cluster_access(flags, cluster)

    async def move() -> None:
        async with contextlib.AsyncExitStack() as stack:
            client = await connect(access)
            stack.push_async_callback(disconnect, client)
            began = time.monotonic()
            led, suffix = _log_named(name, await logs_of(client, name), log)
            target = to + suffix if to else ""
            answer = await ask_to_move(client, led, target, _MOVE_ANSWER_SECONDS)
            if not answer:
                raise NoLiveBroker(
                    f"no node leads cluster {text.name(led)} on NATS at {access.where}: see "
                    "foldmq nodes"
                )
            reply = orjson.loads(answer)
            if "error" in reply:
                raise Refused(text.escaped(reply["error"]))
            while time.monotonic() - began < _MOVED_SECONDS:
                nodes = map(decode_status, await ask_nodes(client, led, _LOOK_SECONDS))
                leader = _leader(filter(None, nodes), reply["from"])
                if leader is not None:
                    seconds = time.monotonic() - began
                    node = text.name(leader.node.removesuffix(suffix))
                    what = f" log {log}" if suffix else ""
                    typer.echo(
                        f"node {node} ({text.name(leader.host)}) leads{what}, epoch "
                        f"{leader.epoch}, after {seconds:.1f} s"
                    )
                    return
        raise NoLiveBroker(
            f"node {text.name(reply['to'])} does not lead after {_MOVED_SECONDS:g} s: see "
            "foldmq nodes"
        )

    asyncio.run(move())


def _log_named(cluster: str, logs: list[str], log: int | None) -> tuple[str, str]:
    """Return the name of the log to move, and the suffix of the names of its nodes."""
    if not logs:
        if log is not None:
            raise UsageError(f"cluster {text.name(cluster)} has one log: leave --log out")
        return cluster, ""
    if log is None or not 0 <= log < len(logs):
        raise UsageError(
            f"cluster {text.name(cluster)} has {len(logs)} logs: give --log, 0 to {len(logs) - 1}"
        )
    return logs[log], f"-p{log}"


def _leader(nodes: Iterable[NodeStatus], before: str) -> NodeStatus | None:
    """Return the leader, if it is not the one before."""
    return next((node for node in nodes if node.role is Role.LEADING and node.node != before), None)
