"""The number of a stream's replicas, and the check that servers can keep them equal.

A replica that rejects messages that the others store lags behind forever, and its server does not
report it. So more than one replica is refused with server versions that are known to do that.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog
from nats.aio.client import Client

from eventstore.errors import TooManyReplicas
from eventstore.nats.connection import require_version
from eventstore.nats.jetstream import NO_CLUSTER, NO_PEERS, read_info, require

REPLICATED_VERSION: Final = (2, 15, 0)
DEFAULT_REPLICAS: Final = 3
"""Number of replicas in a cluster with at least as many servers."""
_WHY: Final = "before, a restarted replica can reject records forever without an error"
_ADVICE: Final = "upgrade it, or keep the log in one replica"
_INFO_SECONDS: Final = 1.0
_CATCH_UP_SECONDS: Final = 60.0
_LOOK_EVERY: Final = 0.2

_log = structlog.get_logger("foldmq.nats")


def check_replication(client: Client, replicas: int) -> None:
    """Raise NatsTooOld when the connected server is too old for this number of replicas."""
    _check(str(client.connected_server_version), replicas, "the NATS server")


async def check_all_servers(client: Client, replicas: int) -> None:
    """Raise NatsTooOld when a server of the cluster is too old for this number of replicas.

    Servers that do not answer are skipped: each is checked again when this process connects to it.
    """
    check_replication(client, replicas)
    if replicas == 1:
        return
    places = {(uri.hostname, uri.port) for uri in client.servers if uri.scheme in ("nats", "tls")}
    versions = await asyncio.gather(*(_version_at(host, port) for host, port in places))
    for (host, port), version in zip(places, versions, strict=True):
        if version is not None:
            _check(version, replicas, f"the NATS server at {host}:{port}")


def _check(version: str, replicas: int, where: str) -> None:
    if replicas > 1:
        purpose = f" for {replicas} replicas"
        require_version(version, REPLICATED_VERSION, where, purpose, _WHY, _ADVICE)


async def _version_at(host: str | None, port: int | None) -> str | None:
    """Return the version in a server's greeting; None when there is no greeting."""
    writer = None
    try:
        async with asyncio.timeout(_INFO_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            greeting = await reader.readline()
            return str(orjson.loads(greeting.partition(b" ")[2])["version"])
    except (OSError, ValueError, KeyError, TypeError, TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.close()


def in_cluster(client: Client) -> bool:
    """Return whether the connected server belongs to a cluster."""
    return bool(client._server_info.get("cluster"))  # noqa: SLF001 - nats-py does not expose it


async def set_replicas(client: Client, config: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """Change the number of replicas of a stream; return JetStream's answer, as of STREAM.INFO.

    Returns when the replicas have caught up, or after a minute: then they continue in the
    background. Raises TooManyReplicas, and as :func:`eventstore.nats.jetstream.require`.
    """
    name = config["name"]
    changed = {**config, "num_replicas": replicas}
    accept = (NO_PEERS, NO_CLUSTER)
    answer = await require(client, f"STREAM.UPDATE.{name}", changed, accept=accept)
    if "error" in answer:
        raise TooManyReplicas(replicas, answer["error"].get("description", ""))
    _log.info("stream gets more replicas", stream=name, replicas=replicas)
    answer = await replicas_in_step(client, name, replicas, _CATCH_UP_SECONDS)
    if not _caught_up(answer, replicas):
        _log.warning("new replicas are still catching up: they protect no data yet", stream=name)
    return answer


async def replicas_in_step(
    client: Client, stream: str, replicas: int, seconds: float
) -> dict[str, Any]:
    """Return JetStream's stream info when the replicas are equal, or after ``seconds``.

    Raises as :func:`eventstore.nats.jetstream.read_info`.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = await read_info(client, stream)
        if _caught_up(answer, replicas) or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(_LOOK_EVERY)


def _caught_up(info: Mapping[str, Any], replicas: int) -> bool:
    """Return whether a stream has a leader and enough replicas with all its messages."""
    cluster = info.get("cluster") or {}
    others = [replica for replica in cluster.get("replicas") or [] if replica.get("current")]
    return bool(cluster.get("leader")) and len(others) >= replicas - 1
