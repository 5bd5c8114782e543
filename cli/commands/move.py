"""``foldmq nodes move``: another node of the cluster leads."""

import asyncio
import contextlib
import time
from collections.abc import Iterable

import orjson
import typer

from cli.commands import node_list
from cli.common import text
from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.source_flags import SourceFlags
from cluster.status import NodeStatus, Role, decode_status
from eventstore.errors import UsageError
from eventstore.nats.cluster_messages import ask_nodes, ask_to_move
from eventstore.nats.connection import connect, disconnect

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_MOVED_SECONDS = 30.0
"""Seconds to wait for the new leader: the old one may have to write much."""


def move_leadership(flags: SourceFlags, cluster: str | None, to: str, log: int | None) -> None:
    """Ask the leader of a log to hand over, and wait until the other node leads.

    ``log`` is the number of the log, in a cluster with several. Raises UsageError, NatsUnavailable,
    NoLiveBroker and Refused.
    """
    name, access = node_list.cluster_access(flags, cluster)

    async def move() -> None:
        async with contextlib.AsyncExitStack() as stack:
            client = await connect(access)
            stack.push_async_callback(disconnect, client)
            began = time.monotonic()
            led, suffix = _log_named(name, await node_list.logs_of(client, name), log)
            wanted = to + suffix if to else ""
            answer = await ask_to_move(client, led, wanted, _ANSWER_SECONDS)
            if not answer:
                raise NoLiveBroker(
                    f"no node leads cluster {text.name(led)} on NATS at {access.where}: see "
                    "foldmq nodes"
                )
            found = orjson.loads(answer)
            if "error" in found:
                raise Refused(text.escaped(found["error"]))
            while time.monotonic() - began < _MOVED_SECONDS:
                nodes = map(decode_status, await ask_nodes(client, led, _LOOK_SECONDS))
                leader = _leader(filter(None, nodes), found["from"])
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
            f"node {text.name(found['to'])} does not lead after {_MOVED_SECONDS:g} s: see "
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
    return next((one for one in nodes if one.role is Role.LEADING and one.node != before), None)
