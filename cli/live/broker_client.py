"""A client of the running broker's inspector, over NATS.

A broker answers as the NATS micro service ``foldmq``, on ``foldmq.inspect.<node>.<endpoint>``. A
broker with an embedded NATS server is found through its data directory, with the credentials in it.
On an external NATS server, the node is given, or is the only one that answers.
"""

import contextlib
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from fcntl import LOCK_NB, LOCK_SH, flock
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client

from cli.common import escaped, name
from cli.logsource import SourceFlags, external_access
from cli.settings import LogLocationSettings, load_log_settings
from eventstore.datadir import DataDir
from eventstore.errors import UsageError
from eventstore.nats import LOG_STREAM_PREFIX, ConnectionOptions, connect, disconnect
from eventstore.partitions import partition_names
from protocol.errors import FoldmqError

SERVICE = "foldmq"
"""Name of the micro service; every broker is an instance of it."""
SUBJECTS = "foldmq.inspect"
ASK_SECONDS = 10.0
"""Seconds to wait for a reply."""

_NODE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_FOUND_SECONDS = 2.0
"""Seconds to wait for the first broker to answer on an external NATS server."""
_QUIET_SECONDS = 0.3
"""Seconds without a further reply after which all brokers have answered."""
_LISTED = 10
_SENTENCE = 1000


class NoLiveBroker(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """No broker is running there, or it does not answer."""

    exit_code = 69


class NoAnswer(NoLiveBroker):
    """The broker may have received the request, but does not answer."""


class Refused(FoldmqError):  # noqa: N818
    """The broker refused the request; the text is its message."""

    exit_code = 1


class TooLarge(Refused):
    """The reply does not fit into a NATS message: the caller can request less at once."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A running broker."""

    node: str
    where: str
    """The location, as text."""
    client: Client

    @property
    def connected(self) -> bool:
        """Whether the connection to NATS is up."""
        return self.client.is_connected

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's reply.

        Raises Refused with its message, TooLarge if the reply would be too large, NoLiveBroker if
        the broker is not there, NoAnswer if it may be there but does not answer.
        """
        subject = f"{SUBJECTS}.{self.node}.{endpoint}"
        try:
            data = orjson.dumps(request)
        except orjson.JSONEncodeError:
            raise UsageError("a name is not UTF-8 text") from None
        try:
            reply = await self.client.request(subject, data, timeout=ASK_SECONDS)
        except nats.errors.NoRespondersError:
            raise NoLiveBroker(
                f"no broker of node {name(self.node)} answers on {self.where}: check that it is "
                "running"
            ) from None
        except (TimeoutError, nats.errors.Error, OSError) as error:
            why = "time-out" if isinstance(error, TimeoutError) else escaped(str(error))
            raise NoAnswer(
                f"the broker of node {name(self.node)} on {self.where} does not answer: {why}"
            ) from None
        answer = _as_object(reply.data)
        if answer is None:
            raise NoAnswer(
                f"the broker of node {name(self.node)} on {self.where} sent a reply that this "
                "foldmq does not understand: check that both have the same version"
            )
        if "error" in answer:
            refusal = TooLarge if answer.get("too_large") else Refused
            raise refusal(_sentence(str(answer["error"])))
        return answer

    async def pages(self, endpoint: str, /, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the pages of a list: replies with ``rows``."""
        page = await self.ask(endpoint, **request)
        yield page
        while page.get("more"):
            page = await self.ask("page", cursor=page["cursor"])
            yield page

    async def rows(self, endpoint: str, /, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows of all pages of a list."""
        async for page in self.pages(endpoint, **request):
            for row in page["rows"]:
                yield row


def _as_object(data: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def _sentence(said: str) -> str:
    """Return the broker's message with control characters escaped; it escapes names itself."""
    return said[:_SENTENCE] if said.isprintable() else escaped(said, _SENTENCE)


@contextlib.asynccontextmanager
async def open_broker(flags: SourceFlags) -> AsyncIterator[LiveBroker]:
    """Yield a client of the running broker that the flags name.

    Raises NoLiveBroker with the remedy, NatsUnavailable, ConfigError or UsageError.
    """
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    node = _named(flags)
    async with contextlib.AsyncExitStack() as stack:
        if settings.nats_url is None:
            broker = await _in_directory(stack, settings, node)
        else:
            broker = await _on_external(stack, settings, node)
        yield broker


async def _in_directory(
    stack: contextlib.AsyncExitStack, settings: LogLocationSettings, node: str | None
) -> LiveBroker:
    datadir = DataDir(settings.data_dir)
    try:
        port = _embedded_port(datadir)
    except PermissionError:
        raise NoLiveBroker(
            f"data directory {datadir.path} cannot be read: run this command as the user of the "
            "broker"
        ) from None
    if port is None or not (_accepts(port) and _in_use(datadir)):
        raise NoLiveBroker(_not_there(datadir, port))
    known = datadir.credentials()
    access = ConnectionOptions(
        urls=(f"nats://127.0.0.1:{port}",), user=known.user, password=known.password
    )
    client = await _connect(stack, access)
    return LiveBroker(node or _only_node(datadir), str(datadir.path), client)


def _only_node(datadir: DataDir) -> str:
    """Return the node of a data directory. Raises NoLiveBroker when there are several."""
    node = datadir.node()
    if not datadir.processes.exists():
        return node
    names = datadir.log_names()
    raise NoLiveBroker(
        f"there are {len(names)} broker processes on {datadir.path}: give --node, one of "
        f"{', '.join(names)}"
    )


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
    try:
        return int(json.loads(datadir.nats_config.read_text("utf-8"))["port"])
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
    stack: contextlib.AsyncExitStack, settings: LogLocationSettings, node: str | None
) -> LiveBroker:
    access = external_access(settings)
    where = f"NATS at {access.where}"
    client = await _connect(stack, access)
    datadir = DataDir(settings.data_dir)
    if node is None and settings.cluster is not None and settings.partitions > 1:
        names = ", ".join(partition_names(settings.cluster, settings.partitions))
        raise UsageError(
            f"cluster {name(settings.cluster)} has {settings.partitions} logs: give --node, one of "
            f"{names}"
        )
    node = node or settings.cluster
    if node is None and "data_dir" in settings.model_fields_set:
        node = datadir.node() if (datadir.path / "node").is_file() else None
    if node is None:
        node = _only(await find_nodes(client), where)
    return LiveBroker(node, where, client)


async def find_nodes(client: Client) -> list[str]:
    """Return the nodes of the brokers that answer on a NATS server."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    found: set[str] = set()
    wait = _FOUND_SECONDS
    try:
        await client.publish(f"$SRV.INFO.{SERVICE}", b"", reply=inbox)
        while True:
            message = await answers.next_msg(timeout=wait)
            if not message.data and (message.headers or {}).get("Status") == "503":
                break
            node = ((_as_object(message.data) or {}).get("metadata") or {}).get("node")
            if isinstance(node, str) and _NODE.fullmatch(node):
                found.add(node)
            wait = _QUIET_SECONDS
    except (TimeoutError, nats.errors.Error):
        pass
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await answers.unsubscribe()
    return sorted(found)


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
