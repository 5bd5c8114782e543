"""Publishing over HTTP: each message has a receipt when it is on disk.

Idempotency keys are remembered here, in memory: after a restart a retry may publish again.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, Final

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cli.commands.bulk_change import portions
from cli.logs.broker_client import Refused
from cli.logs.next_commands import completed
from cli.web.api.problem_types import (
    BodyTooLarge,
    KeyReused,
    PublishRefused,
    UnsupportedType,
    problem_details,
)
from cli.web.api.schemas import Model
from cli.web.api.streams import NDJSON, dumps
from cli.web.tokens import Grant
from cli.web.web_log_client import WebLogClient
from eventstore.display import escaped
from eventstore.errors import UsageError
from eventstore.format.events import API_SESSION
from eventstore.format.positions import format_position
from eventstore.partitions import partition_of
from protocol.errors import FoldmqError

MAX_MESSAGES: Final = 1000
MAX_PAYLOAD: Final = 256 * 1024
_MAX_BODY: Final = 512 * 1024
_MAX_LINES_BODY: Final = 8 * 1024 * 1024
_MAX_ASKED: Final = 384 * 1024
"""Bytes of a request to the broker, approximately."""
_KEY_SECONDS: Final = 600.0
_MAX_KEYS: Final = 10_000
_MAX_KEPT: Final = 16 * 1024 * 1024
_LONGEST_KEY: Final = 200
_KEY: Final = re.compile(rf"[!-~]{{1,{_LONGEST_KEY}}}")

Text = Annotated[str, Field(max_length=65_535)]


class TooDeep(ValueError):  # noqa: N818 - named for the condition
    """A value is nested more deeply than JSON is written here."""


class PublishedProperties(BaseModel):
    """The properties of a message (MQTT 5)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    message_expiry_interval: Annotated[
        int | None, Field(ge=0, le=0xFFFF_FFFF, description="Seconds.")
    ] = None
    payload_format: Annotated[int, Field(ge=0, le=1, description="1: the payload is UTF-8.")] = 0
    content_type: Text | None = None
    response_topic: Text | None = None
    correlation_data: Annotated[
        str | None, Field(pattern=r"^([0-9a-fA-F]{2})*$", max_length=131_070)
    ] = None
    user_properties: Annotated[
        list[Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(max_length=80)
    ] = []


class PublishedMessage(BaseModel):
    """A message to publish. It has at most one of the three payloads; without one it is empty."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic: Annotated[str, Field(min_length=1, max_length=65_535, pattern="^[^+#\\u0000]+$")]
    payload: Annotated[str | None, Field(description="Text, sent as UTF-8.")] = None
    payload_base64: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$", description="Bytes.")
    ] = None
    payload_json: Annotated[Any, Field(description="Any value, sent as JSON.")] = None
    qos: Annotated[int, Field(ge=0, le=2)] = 1
    retain: bool = False
    properties: PublishedProperties | None = None

    @model_validator(mode="after")
    def _one_payload(self) -> PublishedMessage:
        names = {"payload", "payload_base64", "payload_json"} & self.model_fields_set
        if len(names) > 1:
            raise ValueError(f"give one of {', '.join(sorted(names))}")
        return self

    def bytes(self) -> bytes:
        """Return the payload; raises ValueError for bad base64, surrogates, or deep JSON."""
        if "payload_json" in self.model_fields_set:
            try:
                return orjson.dumps(self.payload_json)
            except orjson.JSONEncodeError:
                raise TooDeep from None
        if self.payload_base64 is not None:
            return base64.b64decode(self.payload_base64, validate=True)
        return (self.payload or "").encode()


class ReceiptObject(Model):
    """What became of a message: it is on disk, or at QoS 0 passed on."""

    position: str | None = Field(
        default=None, description="Its position in the log; none for QoS 0 without retain."
    )
    log: str | None = Field(default=None, description="The log that it is in.")
    matched: int = Field(description="The number of subscriptions that it was for.")


@dataclass(slots=True)
class _Answered:
    """The answer to a request with a key; the future is done when it is known."""

    body: bytes
    at: float
    answer: asyncio.Future[web.Response] = field(default_factory=asyncio.Future)
    size: int = 0


class ApiPublisher:
    """Publishes for requests; ``clock`` returns monotonic seconds."""

    def __init__(self, link: WebLogClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], _Answered] = OrderedDict()
        self._kept = 0

    async def publish(self, request: web.Request, grant: Grant, base: str) -> web.Response:
        """Return the receipt of a message, or of each of several."""
        kind = request.content_type
        if kind not in ("application/json", NDJSON):
            raise UnsupportedType(f"Content-Type must be application/json or {NDJSON}")
        key = request.headers.get("Idempotency-Key")
        if key is not None and not _KEY.fullmatch(key):
            raise UsageError(
                f"Idempotency-Key must have 1 to {_LONGEST_KEY} ASCII characters, no spaces"
            )
        body = await _read(request, _MAX_LINES_BODY if kind == NDJSON else _MAX_BODY)
        if key is None:
            return await self._answer(kind, body, grant, base)
        return await self._once((grant.mark, key), kind, body, grant, base)

    async def _once(
        self, key: tuple[str, str], kind: str, body: bytes, grant: Grant, base: str
    ) -> web.Response:
        """Return the answer to the first request with a key."""
        self._forget()
        digest = blake2b(kind.encode() + b"\n" + body, digest_size=16).digest()
        earlier = self._seen.get(key)
        if earlier is not None:
            if earlier.body != digest:
                raise KeyReused("this Idempotency-Key was used for another request")
            return _copied(await asyncio.shield(earlier.answer))
        entry = self._seen[key] = _Answered(digest, self._clock())
        try:
            response = await self._answer(kind, body, grant, base)
        except BaseException as error:
            self._seen.pop(key, None)  # it may be tried again
            entry.answer.set_exception(
                error if isinstance(error, Exception) else Refused("the request was cancelled")
            )
            entry.answer.exception()
            raise
        entry.answer.set_result(response)
        if key in self._seen:
            entry.size = len(response.body or b"")  # type: ignore[arg-type]  # it is bytes
            self._kept += entry.size
        return _copied(response)

    def _forget(self) -> None:
        """Drop keys that are too old, or too many."""
        old = self._clock() - _KEY_SECONDS
        while self._seen:
            key, first = next(iter(self._seen.items()))
            if first.at > old and len(self._seen) < _MAX_KEYS and self._kept < _MAX_KEPT:
                break
            self._kept -= first.size
            del self._seen[key]

    async def _answer(self, kind: str, body: bytes, grant: Grant, base: str) -> web.Response:
        if kind == NDJSON:
            return await self._answer_lines(body, grant, base)
        message = _message(body, "the body")
        (receipt,) = await self._ask([message], grant)
        if "refused" in receipt:
            reason = receipt["refused"]
            raise PublishRefused(f"the broker refused the message: {reason}", reason=reason)
        if "position" not in receipt:
            return web.Response(status=202, body=dumps(receipt), content_type="application/json")
        response = web.Response(status=201, body=dumps(receipt), content_type="application/json")
        where = f"{base}/messages/{receipt['position']}"
        log = f"?log={receipt['log']}" if self._link.names else ""
        response.headers["Location"] = where + log
        response.headers["Foldmq-Position"] = (
            f"{receipt['log']}:{receipt['position']}" if self._link.names else receipt["position"]
        )
        return response

    async def _answer_lines(self, body: bytes, grant: Grant, base: str) -> web.Response:
        """Publish a message for each line; return a receipt for each, in their order.

        An error behind the first receipts is the last line: they must not be published again.
        """
        lines = [line for line in body.split(b"\n") if line.strip()]
        if not 0 < len(lines) <= MAX_MESSAGES:
            raise UsageError(f"the body must have 1 to {MAX_MESSAGES:,} lines")
        messages: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            messages.append(_message(line, f"line {number}"))
            if number % 64 == 0:
                await asyncio.sleep(0)
        receipts: list[dict[str, Any]] = []
        for part in portions(messages, len(messages), _MAX_ASKED):
            begin, end = len(receipts) + 1, len(receipts) + len(part)
            try:
                receipts += await self._ask(part, grant)
            except FoldmqError as error:
                if not receipts:
                    raise
                where = f"lines {begin} to {end}" if end > begin else f"line {end}"
                detail = f"{where}: {error}"
                if not isinstance(error, PublishRefused):
                    detail += "; they may have been published"
                if end < len(messages):
                    detail += f"; the lines behind {end} were not published"
                receipts.append({"error": problem_details(error, completed(detail), base)})
                break
        answer = b"".join(dumps(receipt) + b"\n" for receipt in receipts)
        return web.Response(body=answer, content_type=NDJSON)

    async def _ask(self, messages: Sequence[dict[str, Any]], grant: Grant) -> list[dict[str, Any]]:
        """Return the receipts of messages; all of a token are in one log, so they keep their order.

        Raises NoLiveBroker if the broker does not answer: they may be on disk nevertheless.
        """
        names = self._link.names or [name for name in await self._link.logs() if name]
        session = API_SESSION + grant.name
        log = names[partition_of(session, len(names))] if names else ""
        try:
            answer = await self._link.ask_log(
                log, "change", do="publish", by=grant.name, messages=messages
            )
        except Refused as error:
            raise PublishRefused(str(error)) from None
        return [_receipt(receipt, answer["node"]) for receipt in answer["receipts"]]


def _receipt(answer: dict[str, Any], log: str) -> dict[str, Any]:
    if "position" not in answer:
        return answer
    return {
        "position": format_position(answer["position"]),
        "log": log,
        "matched": answer["matched"],
    }


async def _read(request: web.Request, most: int) -> bytes:
    """Return the body of a request; raises BodyTooLarge."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise BodyTooLarge(f"the body may have at most {most:,} bytes")
    return bytes(body)


def _message(line: bytes, where: str) -> dict[str, Any]:
    """Return a message as the broker takes it; raises UsageError and BodyTooLarge."""
    try:
        message = PublishedMessage.model_validate(orjson.loads(line))
        payload = message.bytes()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}: {escaped(f'{place}: ' if place else '', 80)}{reason}") from None
    except UnicodeEncodeError:
        raise UsageError(f"{where}: payload has a surrogate: it must be Unicode text") from None
    except TooDeep:
        raise UsageError(f"{where}: payload_json is nested too deeply") from None
    except orjson.JSONDecodeError:
        raise UsageError(f"{where}: is not JSON") from None
    except ValueError:
        raise UsageError(f"{where}: payload_base64 is not base64") from None
    if len(payload) > MAX_PAYLOAD:
        raise BodyTooLarge(f"{where}: a payload may have at most {MAX_PAYLOAD:,} bytes")
    request: dict[str, Any] = {
        "topic": message.topic,
        "payload_base64": base64.b64encode(payload).decode(),
        "qos": message.qos,
        "retain": message.retain,
    }
    if message.properties is not None:
        request["properties"] = message.properties.model_dump(exclude_defaults=True)
    return request


def _copied(response: web.Response) -> web.Response:
    """Return a response to send: one can be sent only once."""
    return web.Response(
        status=response.status,
        body=response.body,
        headers={key: value for key, value in response.headers.items() if key != "Content-Length"},
    )
