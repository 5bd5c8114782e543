"""Finds the brokers that flags and settings name.

A broker with an embedded NATS server is found through its data directory, with the credentials in
it. On an external NATS server, the node is given, or is the only one that answers. Where a node or
cluster has several logs, there is a broker for each.
"""

import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client

from cli.logs.broker_client import SERVICE, LiveBroker, NoDirectory, NoLiveBroker, as_object
from cli.logs.log_brokers import LogBrokers, log_names
from cli.logs.source import external_access, write_notice
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import LogSettings, load_log_settings
from eventstore.datadir import DataDir
from eventstore.display import name
from eventstore.errors import UsageError
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.discovery import LOG_STREAM_PREFIX, list_logs
from eventstore.partitions import partition_names
from eventstore.reading.log_location import embedded_access
from protocol.errors import FoldmqError

_NODE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_ONE_OF_SEVERAL = re.compile(r"(.+)-p([0-9]{1,2})")
"""The name of one of several logs, of which there are at most 32."""
_FOUND_SECONDS = 2.0
"""Seconds to wait for the first broker to answer on an external NATS server."""
_QUIET_SECONDS = 0.3
"""Seconds without a further reply after which all brokers have answered."""
_LISTED = 10


class _Place(NamedTuple):
    """Where brokers are."""

    client: Client
    where: str
    """The location, as text."""
    logs: list[str]
    """The logs of a node or cluster with several; otherwise none."""
    node: str
    """The node that was named, or the only one; otherwise empty, for all logs."""
    directory: Path | None = None
    """The data directory with the log, if that is on this machine."""


@contextlib.asynccontextmanager
async def open_brokers(flags: SourceFlags) -> AsyncIterator[LogBrokers]:
    """Yield clients of the running brokers that the flags name: one, or one for each log.

    With ``verbose`` flags, these are written to stderr. Raises NoLiveBroker with the remedy,
    NatsUnavailable, ConfigError or UsageError.
    """
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    node = _named(flags)
    async with contextlib.AsyncExitStack() as stack:
        find = _in_directory if settings.nats_url is None else _on_external
        place = await find(stack, settings, node)
        whole = not place.node or f"{place.node}-p0" in place.logs
        nodes = place.logs if whole else [place.node]
        brokers = [
            LiveBroker(name, place.where, place.client, name if name in place.logs else "")
            for name in nodes
        ]
        if flags.verbose:
            of_nodes = "broker of node" if len(nodes) == 1 else "brokers of nodes"
            write_notice(f"connected to the {of_nodes} {', '.join(nodes)} on {place.where}")
        yield LogBrokers(brokers, place.logs, place.directory)


async def _in_directory(
    stack: contextlib.AsyncExitStack, settings: LogSettings, node: str | None
) -> _Place:
    datadir = DataDir(settings.data_dir)
    try:
        if not datadir.path.exists():
            raise NoDirectory(
                f"data directory {datadir.path} does not exist: start the broker with foldmq "
                "serve, or give --data-dir or --nats-url"
            )
        port = _embedded_port(datadir)
    except PermissionError:
        raise NoLiveBroker(
            f"data directory {datadir.path} cannot be read: run this command as the user of the "
            "broker"
        ) from None
    if port is None or not (_accepts(port) and _in_use(datadir)):
        raise NoLiveBroker(_not_there(datadir, port))
    client = await _connect(stack, embedded_access(datadir, port))
    logs = datadir.log_names()
    if node is None and not logs:
        node = datadir.node()
    return _Place(client, str(datadir.path), logs, node or "", datadir.path)


def _not_there(datadir: DataDir, port: int | None) -> str:
    """Return why no broker can be reached through a data directory."""
    if not (_holder_lives(datadir) and _in_use(datadir)):
        return (
            f"no broker is running on {datadir.path}: start it with foldmq serve, or give "
            "--data-dir or --nats-url"
        )
    if port is None:
        return f"the broker on {datadir.path} uses an external NATS server: give --nats-url"
    return (
        f"the broker on {datadir.path} has no embedded NATS server that answers: wait if it is "
        "starting or stopping, or give --nats-url if it uses an external NATS server"
    )


def _holder_lives(datadir: DataDir) -> bool:
    """Return whether the last process that used the directory exists.

    Only then its lock is tested, so that a starting broker does not find it taken.
    """
    try:
        os.kill(int((datadir.path / "foldmq.lock").read_text("ascii")), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _embedded_port(datadir: DataDir) -> int | None:
    """Return the last port of the NATS server of a data directory.

    Raises PermissionError if this user may not read it.
    """
    if not datadir.nats_credentials.is_file() or not (datadir.path / "node").is_file():
        return None
    port = datadir.nats_port()
    if port is None and datadir.nats_config.exists():
        datadir.nats_config.open("rb").close()
    return port


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def _in_use(datadir: DataDir) -> bool:
    """Return whether a process uses the directory; the password is not sent to other listeners."""
    try:
        held = os.open(datadir.path / "foldmq.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        flock(held, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(held)


async def _on_external(
    stack: contextlib.AsyncExitStack, settings: LogSettings, node: str | None
) -> _Place:
    access = external_access(settings)
    where = f"NATS at {access.where}"
    client = await _connect(stack, access)
    logs = log_names(settings)
    if node is None and not logs:
        node = settings.cluster
        if node is None and "data_dir" in settings.model_fields_set:
            datadir = DataDir(settings.data_dir)
            node = datadir.node() if (datadir.path / "node").is_file() else None
        if node is None:
            answering = await find_nodes(client)
            logs = await _logs_of(client, answering)
            node = None if logs else _only(answering, where)
    return _Place(client, where, logs, node or "")


async def _logs_of(client: Client, nodes: list[str]) -> list[str]:
    """Return the logs of the node or cluster whose brokers were found, if it has several.

    A log whose broker does not answer is one of them: it has a stream, or a lower number than
    one that was found.
    """
    owners = {match[1] if (match := _ONE_OF_SEVERAL.fullmatch(log)) else None for log in nodes}
    owner = owners.pop() if len(owners) == 1 else None
    if owner is None:
        return []
    streams: set[str] = set()
    with contextlib.suppress(FoldmqError):  # this user may ask brokers only
        streams.update(await list_logs(client))
    names = {stream.removeprefix(LOG_STREAM_PREFIX) for stream in streams} | set(nodes)
    found_names = filter(None, map(_ONE_OF_SEVERAL.fullmatch, names))
    numbers = {int(match[2]) for match in found_names if match[1] == owner}
    count = max(numbers) + 1
    return partition_names(owner, count) if count > 1 and 0 in numbers else []


async def find_nodes(client: Client) -> list[str]:
    """Return the nodes of the brokers that answer on a NATS server."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    nodes: set[str] = set()
    wait = _FOUND_SECONDS
    try:
        await client.publish(f"$SRV.INFO.{SERVICE}", b"", reply=inbox)
        while True:
            message = await answers.next_msg(timeout=wait)
            if not message.data and (message.headers or {}).get("Status") == "503":
                break
            node = ((as_object(message.data) or {}).get("metadata") or {}).get("node")
            if isinstance(node, str) and _NODE.fullmatch(node):
                nodes.add(node)
            wait = _QUIET_SECONDS
    except (TimeoutError, nats.errors.Error):
        pass
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await answers.unsubscribe()
    return sorted(nodes)


def _only(nodes: list[str], where: str) -> str:
    if not nodes:
        raise NoLiveBroker(
            f"no broker answers on {where}: check that one is running and that this "
            "NATS user may send requests to it"
        )
    if len(nodes) > 1:
        listed = ", ".join(nodes[:_LISTED]) + (", ..." if len(nodes) > _LISTED else "")
        raise UsageError(f"there are {len(nodes)} brokers on {where}: give --node, one of {listed}")
    return nodes[0]


def _named(flags: SourceFlags) -> str | None:
    if flags.stream is not None and flags.node is not None:
        raise UsageError("--node and --stream cannot be combined")
    node = flags.node
    if flags.stream is not None:
        node = flags.stream.removeprefix(LOG_STREAM_PREFIX)
        if node == flags.stream:
            raise UsageError(
                f"a broker cannot be found by its stream {name(flags.stream)}: give --node"
            )
    if node is not None and not _NODE.fullmatch(node):
        raise UsageError(f"not a valid node name: {name(node)}")
    return node


async def _connect(stack: contextlib.AsyncExitStack, access: ConnectionOptions) -> Client:
    client = await connect(access)
    stack.push_async_callback(disconnect, client)
    return client
