"""``foldmq nodes``: the nodes of a cluster as a list."""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

from cli.common import Column, text
from cli.inspection.actor_list import show
from cli.live import NoLiveBroker
from cli.logsource import SourceFlags, external_access
from cli.settings import load_settings
from cluster import NodeStatus, Role, decode_status
from eventstore.errors import UsageError
from eventstore.nats import ConnectionOptions, connect, disconnect
from eventstore.nodes import ask_nodes

_ANSWER_SECONDS = 0.3


def run(flags: SourceFlags, cluster: str | None, *, as_json: bool) -> None:
    """Print the nodes that answer; raises UsageError, NatsUnavailable or NoLiveBroker."""
    name, access = cluster_access(flags, cluster)

    async def ask() -> list[bytes]:
        async with contextlib.AsyncExitStack() as stack:
            client = await connect(access)
            stack.push_async_callback(disconnect, client)
            return await ask_nodes(client, name, _ANSWER_SECONDS)

    found = [status for data in asyncio.run(ask()) if (status := decode_status(data)) is not None]
    if not found:
        raise NoLiveBroker(
            f"no node of cluster {text.name(name)} answers on NATS at {access.where}: check that "
            "one is running and that this NATS user may send requests to it"
        )
    show(rows(found), len(found), "node", _columns(), as_json=as_json)


def cluster_access(flags: SourceFlags, cluster: str | None) -> tuple[str, ConnectionOptions]:
    """Return the name of the cluster and its NATS server; raises UsageError without them."""
    settings = load_settings(flags.settings, os.environ, flags.config)
    name = cluster or settings.cluster
    if name is None or settings.nats_url is None:
        raise UsageError("give the cluster and its NATS server: --cluster NAME --nats-url URL")
    return name, external_access(settings)


def rows(found: list[NodeStatus]) -> list[dict[str, Any]]:
    """Return a row for each node, the leader first."""
    now_ms = round(time.time() * 1000)
    stored = max((one.sequence for one in found if one.role is Role.LEADING), default=None)
    made = [
        {
            **dataclasses.asdict(one),
            "behind": None if stored is None else max(0, stored - one.sequence),
            "clock_off_ms": one.time_ms - now_ms,
        }
        for one in found
    ]
    return sorted(made, key=lambda row: (row["role"] != Role.LEADING, row["node"]))


def _columns() -> list[Column[Mapping[str, Any]]]:
    return [
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
    ]


def _clients(row: Mapping[str, Any]) -> int | None:
    clients: int = row["clients"]
    return clients if row["role"] == Role.LEADING or row["listen"] else None
