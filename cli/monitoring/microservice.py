"""The inspector on NATS: a micro service, found and asked with any NATS tool.

It is there for whoever may use the NATS account of the log, and for nobody else. Each endpoint
has the subject ``foldmq.inspect.<node>.<endpoint>``; requests and answers are JSON objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.micro
import orjson
import structlog

from actors.inspection.requests import Refused
from actors.tracing.tracer import Tracer
from cli.operator.inspecting import SERVICE, SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nats.aio.client import Client
    from nats.micro.request import Request
    from nats.micro.service import Service

    from actors.broker import Broker

_LARGEST_REQUEST = 512 * 1024
_HEADER_BYTES = 4096
_STOP_SECONDS = 2.0
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+([-+].*)?")

_log = structlog.get_logger("foldmq")


async def serve_inspector(stack: contextlib.AsyncExitStack, client: Client, broker: Broker) -> None:
    """Answer questions about a broker from now on, until ``stack`` ends."""
    node = broker.options.node
    version = broker.software if _SEMANTIC.fullmatch(broker.software) else "0.0.0"
    service: Service = await nats.micro.add_service(
        client,
        name=SERVICE,
        version=version,
        description="An MQTT broker: its actors, sessions, messages, and what can be done to them",
        metadata={"node": node},
    )

    async def stop() -> None:
        # When NATS is gone already, so is the service.
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await asyncio.wait_for(service.stop(), _STOP_SECONDS)

    stack.push_async_callback(stop)
    tracer = Tracer(broker, Publisher(client).publish)
    stack.callback(tracer.close)
    broker.questions.update(tracer.handlers())
    for endpoint in broker.inspector.endpoints:
        await service.add_endpoint(
            name=endpoint.replace(".", "_"),
            subject=f"{SUBJECTS}.{node}.{endpoint}",
            handler=_handler(broker, endpoint, client),
        )


class Publisher:
    """Publishes what nobody waits for, in order; what NATS does not take is lost."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, subject: str, data: bytes) -> None:
        """Publish soon."""
        task = asyncio.get_running_loop().create_task(self._publish(subject, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, subject: str, data: bytes) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.publish(subject, data)


def _handler(
    broker: Broker, endpoint: str, client: Client
) -> Callable[[Request], Coroutine[Any, Any, None]]:
    async def handle(request: Request) -> None:
        headers = None
        try:
            answer = await broker.inspector.ask_for(endpoint, _read(request.data))
        except Refused as refused:
            answer = {"error": str(refused)}
            headers = {
                "Nats-Service-Error": " ".join(str(refused).split()),
                "Nats-Service-Error-Code": "400",
            }
        except Exception as error:  # noqa: BLE001 - whoever asks is to know, and the log
            _log.error("question cannot be answered", endpoint=endpoint, exc_info=error)
            answer = {"error": f"cannot be answered: {type(error).__name__}"}
            headers = {"Nats-Service-Error": answer["error"], "Nats-Service-Error-Code": "500"}
        data = orjson.dumps(answer)
        if len(data) > client.max_payload - _HEADER_BYTES:
            # Long names: whoever asked can ask for fewer at once.
            why = f"the answer takes {len(data)} bytes, more than NATS does: ask for less at once"
            data = orjson.dumps({"error": why, "too_large": True})
            headers = {"Nats-Service-Error": why, "Nats-Service-Error-Code": "413"}
        # Whoever asked asks again when the connection is back; some do not want to know.
        with contextlib.suppress(nats.errors.Error, OSError, ValueError):
            await request.respond(data, headers)

    return handle


def _read(data: bytes) -> dict[str, Any]:
    if len(data) > _LARGEST_REQUEST:
        raise Refused(f"a request has at most {_LARGEST_REQUEST} bytes")
    try:
        request = orjson.loads(data or b"{}")
    except ValueError:
        raise Refused("a request is a JSON object") from None
    if not isinstance(request, dict):
        raise Refused("a request is a JSON object")
    return request
