"""The inspector as a NATS micro service, usable with any NATS tool.

It serves only users of the NATS account of the log. Each endpoint has the subject
``foldmq.inspect.<node>.<endpoint>``; requests and replies are JSON objects.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
import nats.micro
import orjson
import structlog
from nats.aio.client import Client
from nats.micro.request import Request
from nats.micro.service import Service

from actors.inspection.broker_inspection import BrokerInspection
from actors.inspection.inspector import NotReady, Refused, TooLarge
from actors.inspection.tracer import Tracer
from cli.logs.broker_client import SERVICE, SUBJECTS

_LARGEST_REQUEST = 512 * 1024
_HEADER_BYTES = 4096
_STOP_SECONDS = 2.0
_MAX_ASKING = 256
"""Maximum number of concurrent requests."""
_MAX_PUBLISHING = 64
_MAX_PENDING = 1024 * 1024
"""Maximum number of bytes buffered for NATS."""
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+([-+].*)?")

_log = structlog.get_logger("foldmq")


async def serve_inspector(
    stack: contextlib.AsyncExitStack, client: Client, inspection: BrokerInspection
) -> None:
    """Serve the inspector of a broker until ``stack`` closes."""
    node, software = inspection.node.options.node, inspection.node.software
    version = software if _SEMANTIC.fullmatch(software) else "0.0.0"
    service: Service = await nats.micro.add_service(
        client,
        name=SERVICE,
        version=version,
        description="An MQTT broker: inspect and manage its actors, sessions and retained messages",
        metadata={"node": node},
    )

    async def stop() -> None:
        # Without the connection to NATS the service is gone already.
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await service.stop()

    stack.push_async_callback(stop)
    tracer = Tracer(inspection.node, inspection.admission, TracePublisher(client).publish)
    stack.callback(tracer.close)
    inspection.handlers.update(tracer.handlers())
    desk = _RequestServer(inspection, client)
    for endpoint in inspection.inspector.endpoints:
        await service.add_endpoint(
            name=endpoint.replace(".", "_"),
            subject=f"{SUBJECTS}.{node}.{endpoint}",
            handler=desk.handler(endpoint),
        )


class TracePublisher:
    """Publishes lines of traces in order; lines that NATS does not accept in time are lost."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, subject: str, data: bytes) -> None:
        """Publish, unless too much is buffered: the log uses the same connection."""
        if len(self._tasks) >= _MAX_PUBLISHING or self._client.pending_data_size > _MAX_PENDING:
            return
        task = asyncio.get_running_loop().create_task(self._publish(subject, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, subject: str, data: bytes) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.publish(subject, data)


class _RequestServer:
    """Serves requests over NATS, a limited number of them at the same time."""

    def __init__(self, inspection: BrokerInspection, client: Client) -> None:
        self._inspection = inspection
        self._client = client
        self._open: set[asyncio.Task[None]] = set()

    def handler(self, endpoint: str) -> Callable[[Request], Coroutine[Any, Any, None]]:
        """Return the handler of an endpoint; requests run concurrently."""

        async def handle(request: Request) -> None:
            if len(self._open) >= _MAX_ASKING:
                await self._respond(request, *_refusal("busy: try again in a moment", 503))
                return
            task = asyncio.get_running_loop().create_task(self._serve(endpoint, request))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

        return handle

    async def _serve(self, endpoint: str, request: Request) -> None:
        try:
            answer = await self._inspection.inspector.ask_for(endpoint, _read(request.data))
        except TooLarge as refused:
            reply = _refusal(str(refused), 413, too_large=True)
        except NotReady as refused:
            reply = _refusal(str(refused), 503, not_ready=True)
        except Refused as refused:
            reply = _refusal(str(refused), 400)
        except Exception as error:  # noqa: BLE001 - the caller and the log get it
            _log.error("request failed", endpoint=endpoint, exc_info=error)
            reply = _refusal(f"request failed: {type(error).__name__}", 500)
        else:
            reply = orjson.dumps(answer), None
            if len(reply[0]) > self._client.max_payload - _HEADER_BYTES:
                why = f"the reply has {len(reply[0])} bytes, more than NATS allows"
                reply = _refusal(f"{why}: request less at once", 413, too_large=True)
        await self._respond(request, *reply)

    async def _respond(self, request: Request, data: bytes, headers: dict[str, str] | None) -> None:
        # The caller retries when the connection is back, or expects no reply.
        with contextlib.suppress(nats.errors.Error, OSError, ValueError):
            await request.respond(data, headers)


def _refusal(why: str, code: int, **more: bool) -> tuple[bytes, dict[str, str] | None]:
    headers = {
        "Nats-Service-Error": " ".join(why.split()),
        "Nats-Service-Error-Code": str(code),
    }
    return orjson.dumps({"error": why, **more}), headers


def _read(data: bytes) -> dict[str, Any]:
    if len(data) > _LARGEST_REQUEST:
        raise Refused(f"a request may have at most {_LARGEST_REQUEST} bytes")
    try:
        request = orjson.loads(data or b"{}")
    except ValueError:
        raise Refused("a request must be a JSON object") from None
    if not isinstance(request, dict):
        raise Refused("a request must be a JSON object")
    return request
