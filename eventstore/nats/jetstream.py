"""Requests to JetStream: the only place that knows its subjects, error codes and status codes.

:func:`require` is for setup: its errors tell the operator what to change. The other requests
concern one stream that should exist: LostLog means that it does not, LogUnavailable that JetStream
does not answer or refuses the request, which may be temporary.
"""

import asyncio
import base64
import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from eventstore.errors import (
    CorruptLog,
    DiskFull,
    EventStoreError,
    LogUnavailable,
    LostLog,
    NatsUnavailable,
)
from eventstore.nats.connection import describe_error
from eventstore.nats.direct_client import API, DirectClient

Arrival = TypeVar("Arrival")

REQUEST_SECONDS: Final = 10.0
"""Seconds to wait for an answer, unless the caller passes another time."""

NO_MESSAGE: Final = 10037
OVER_STREAM_LIMIT: Final = 10054
"""The message is larger than ``max_msg_size`` of the stream."""
WRONG_LAST_SEQUENCE: Final = 10071
"""Error code of an append with a wrong expected last sequence."""
NO_STREAM: Final = 10059
NOT_STORED: Final = 10077
"""The file store did not store a message; this is its only code, whatever the reason."""
_SUBJECT_TAKEN: Final = 10065
NO_PEERS: Final = 10005
"""The cluster has too few servers with room for the replicas of a stream."""
NO_CLUSTER: Final = 10074
"""More than one replica is requested from a server outside a cluster."""
_NO_LEADER: Final = frozenset({10008, 10009})
_OUT_OF_RESOURCES: Final = frozenset({10023, 10028, 10047})
_STORE_FAILED: Final = frozenset({10049, NOT_STORED})

END_OF_BATCH: Final = "204"
NOT_FOUND: Final = "404"
"""Values of the ``Status`` header with which JetStream ends a batch of direct gets."""

_PROBE_SECONDS: Final = 0.5
"""Seconds within which JetStream's leader has to answer a connection without other answers."""
_PAUSE_SECONDS: Final = (0.35, 0.65)
"""Least and longest pause after a missing answer."""
MAX_WAIT: Final[float] = 5.0
"""Seconds without an answer after which a server that reaches JetStream's leader is left."""
_LONGEST_WAIT: Final = 60.0
_CUT_OFF_MAX: Final = 8.0
"""Most seconds between two changes from servers that do not reach it."""
_LOOKS: Final = 3
_LOOK_AGAIN_SECONDS: Final = 1.0
"""Number and interval of the requests to the leader of replicas before a message counts as missing:
a leader that was disconnected still considers itself the leader for a moment."""


def api_prefix(client: Client) -> str:
    """Return the prefix of the subjects of JetStream's API: ``$JS.API.``, or a domain's."""
    return client.api_prefix if isinstance(client, DirectClient) else API


async def require(
    client: Client,
    method: str,
    body: Mapping[str, object] | None = None,
    *,
    accept: tuple[int, ...] = (),
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return JetStream's answer; one with an ``error`` only if its ``err_code`` is accepted.

    Raises LogUnavailable when JetStream does not answer or currently has no leader, otherwise
    NatsUnavailable or DiskFull.
    """
    try:
        answer = await _call(client, method, body, seconds)
    except nats.errors.NoRespondersError:
        raise NatsUnavailable(_no_jetstream(client)) from None
    except (nats.errors.Error, OSError) as error:
        raise LogUnavailable(
            f"JetStream does not answer {method}: {describe_error(error)}; check the server's log "
            f"and that our user may publish to {api_prefix(client)}>"
        ) from None
    failure = answer.get("error")
    if failure is not None and failure.get("err_code") not in accept:
        raise _refusal(method, failure)
    return answer


def _no_jetstream(client: Client) -> str:
    prefix = api_prefix(client)
    if prefix != API:
        domain = prefix.split(".")[1]
        return f"no NATS server has JetStream in the domain {domain}: check nats_domain"
    return "the NATS server has no JetStream: start it with --jetstream, or set nats_domain"


async def check_jetstream(client: Client, seconds: float | None = None) -> None:
    """Raise NatsUnavailable unless JetStream is enabled for our account.

    Raises LogUnavailable when it does not answer in ``seconds`` (None: 10).
    """
    await require(client, "INFO", seconds=seconds)


class ServerWatch:
    """Changes the NATS server of a connection over which answers are missing.

    A server from which JetStream's leader cannot be reached is left at once. If it can be reached,
    the missing answers have probably another cause, which is the same at every server, such as a
    stream without a leader: then the server is left after ``max_wait`` seconds. If that does not
    help, the next change comes after twice as long.
    """

    def __init__(self, client: DirectClient, what: str, max_wait: float = MAX_WAIT) -> None:
        """Watch for answers of ``what``, which is how the broker's log names them."""
        self._client = client
        self._what = what
        self._max_wait = max_wait
        self._since: float | None = None
        """Monotonic time of the first missing answer."""
        self._left = float("-inf")
        """Monotonic time of the last change."""
        self._changes = 0
        """The number of changes since the last answer."""

    def answered(self) -> None:
        """Record an answer."""
        self._since = None
        self._changes = 0

    async def unanswered(self) -> None:
        """Record a missing answer; change the server if that may help, and pause."""
        if self._since is None:
            self._since = time.monotonic()
        # Without a connection, another server is already being looked for.
        if self._client.is_connected:
            reached = await self._reaches_jetstream()
            if self._due(time.monotonic(), reached=reached):
                # A command that reads a log does without this package.
                import structlog

                url = self._client.connected_url
                structlog.get_logger("foldmq.nats").warning(
                    "no answer over this NATS server: changing to another one",
                    missing=self._what,
                    server=None if url is None else f"{url.hostname}:{url.port}",
                )
                await self._client.change_server()
        # The nodes do not ask again all at the same moment.
        await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311

    async def _reaches_jetstream(self) -> bool:
        try:
            await check_jetstream(self._client, _PROBE_SECONDS)
        except NatsUnavailable:
            return False
        return True

    def _due(self, now: float, *, reached: bool) -> bool:
        """Return whether to change the server now; if so, note it."""
        if self._since is None:  # there was an answer meanwhile
            return False
        if reached:
            wait = min(self._max_wait * 2.0**self._changes, _LONGEST_WAIT)
        else:
            wait = min(2.0 ** (self._changes - 1), _CUT_OFF_MAX) if self._changes else 0.0
        if now - max(self._since, self._left) < wait:
            return False
        self._left = now
        self._changes += 1
        return True


async def request_stream(
    client: Client,
    stream: str,
    method: str,
    body: Mapping[str, object] | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return JetStream's answer about a stream; an error in it means that the message is missing.

    Raises LostLog when there is no such stream, LogUnavailable for any other error.
    """
    try:
        answer = await _call(client, method, body, seconds)
    except (TimeoutError, nats.errors.Error) as error:
        raise _no_answer(stream, error) from None
    failure = answer.get("error")
    if failure is not None and failure.get("err_code") == NO_STREAM:
        raise LostLog(stream, stored=False)
    if failure is not None and failure.get("err_code") != NO_MESSAGE:
        raise LogUnavailable(f"stream {stream}: {failure.get('description')}")
    return answer


async def read_info(client: Client, stream: str, seconds: float | None = None) -> dict[str, Any]:
    """Return the configuration and the state of a stream. Raises as :func:`request_stream`."""
    return await request_stream(client, stream, f"STREAM.INFO.{stream}", None, seconds)


async def read_bounds(client: Client, stream: str, seconds: float | None = None) -> tuple[int, int]:
    """Return the sequences of the first and last message according to the stream's leader.

    A stream that was emptied begins after its last sequence, one that was never written at 1.
    Raises as :func:`request_stream`.
    """
    state = (await read_info(client, stream, seconds))["state"]
    return max(1, state["first_seq"]), state["last_seq"]


async def purge(client: Client, stream: str, before: int | None = None) -> None:
    """Remove the messages of a stream before a sequence, None: all. Raises as request_stream."""
    body = None if before is None else {"seq": before}
    await request_stream(client, stream, f"STREAM.PURGE.{stream}", body)


async def publish_expecting(
    client: Client, subject: str, data: bytes, last_sequence: int, seconds: float | None = None
) -> dict[str, Any]:
    """Store a message if ``last`` is the stream's last sequence; return JetStream's answer.

    Raises nats-py's exceptions when there is no answer.
    """
    headers = {"Nats-Expected-Last-Sequence": str(last_sequence)}
    reply = await client.request(subject, data, timeout=seconds or REQUEST_SECONDS, headers=headers)
    answer: dict[str, Any] = orjson.loads(reply.data)
    return answer


def direct_get_subject(client: Client, stream: str) -> str:
    """Return the subject of requests that read a stream's messages without a consumer."""
    return f"{api_prefix(client)}DIRECT.GET.{stream}"


async def get_message(
    client: Client, stream: str, sequence: int, seconds: float | None = None
) -> bytes:
    """Return a message of a stream, from any replica that has it.

    Raises CorruptLog when the stream's leader has no such message, or LogUnavailable.
    """
    try:
        reply = await client.request(
            direct_get_subject(client, stream),
            orjson.dumps({"seq": sequence}),
            timeout=seconds or REQUEST_SECONDS,
        )
    except (TimeoutError, nats.errors.Error) as error:
        raise _no_answer(stream, error) from None
    status = status_of(reply)
    if status is None:
        return reply.data
    if status != NOT_FOUND:
        raise LogUnavailable(f"stream {stream} answers {status}")
    message = await _ask_leader(client, stream, {"seq": sequence}, seconds)
    if message is None:
        raise CorruptLog(sequence, f"is not in stream {stream} or cannot be read there")
    return message[1]


async def read_next(
    client: Client, stream: str, sequence: int, seconds: float | None = None
) -> tuple[int, bytes] | None:
    """Return the first message at or after a sequence according to the stream's leader.

    Raises as :func:`request_stream`.
    """
    return await _ask_leader(client, stream, {"seq": sequence, "next_by_subj": ">"}, seconds)


async def _ask_leader(
    client: Client, stream: str, query: Mapping[str, object], seconds: float | None
) -> tuple[int, bytes] | None:
    """Return sequence and data of a message; None if the leader answers twice that it has none."""
    method = f"STREAM.MSG.GET.{stream}"
    for look in range(_LOOKS):
        answer = await request_stream(client, stream, method, query, seconds)
        if "error" not in answer:
            message = answer["message"]
            return message["seq"], base64.b64decode(message.get("data", ""))
        if look == _LOOKS - 1 or not await _may_be_behind(client, stream, query, seconds):
            break
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return None


async def _may_be_behind(
    client: Client, stream: str, query: Mapping[str, object], seconds: float | None
) -> bool:
    """Return whether the leader that was asked may lag behind replicas with the message."""
    info = await read_info(client, stream, seconds)
    last_sequence: int = info["state"]["last_seq"]
    return info["config"].get("num_replicas", 1) > 1 and query["seq"] > last_sequence  # type: ignore[operator] # a number


def status_of(message: Msg) -> str | None:
    """Return the status code of an answer of JetStream; None: the answer is a message."""
    return (message.headers or {}).get("Status")


class Arrivals(Generic[Arrival]):
    """The messages of a stream that arrived and were not read yet."""

    def __init__(self, stream: str, seconds: float | None = None) -> None:
        self._stream = stream
        self._seconds = seconds or REQUEST_SECONDS
        self._messages: list[Arrival] = []
        self._arrived = asyncio.Event()

    def add(self, message: Arrival) -> None:
        """Add a message."""
        self._messages.append(message)
        self._arrived.set()

    async def next(self) -> list[Arrival]:
        """Return all messages since the last call, at least one.

        Raises LogUnavailable if none arrives in time.
        """
        while not self._messages:
            self._arrived.clear()
            try:
                # Python 3.11's wait_for loses a cancellation that arrives together with its result.
                async with asyncio.timeout(self._seconds):
                    await self._arrived.wait()
            except TimeoutError:
                raise LogUnavailable(f"stream {self._stream} does not answer") from None
        messages, self._messages = self._messages, []
        return messages


@contextlib.contextmanager
def sending(stream: str) -> Iterator[None]:
    """Raise LogUnavailable when the connection does not accept the request."""
    try:
        yield
    except nats.errors.Error as error:
        raise LogUnavailable(f"stream {stream} cannot be queried: {error}") from None


async def _call(
    client: Client, method: str, body: Mapping[str, object] | None, seconds: float | None = None
) -> dict[str, Any]:
    data = b"" if body is None else orjson.dumps(body)
    subject = f"{api_prefix(client)}{method}"
    reply = await client.request(subject, data, timeout=seconds or REQUEST_SECONDS)
    answer: dict[str, Any] = orjson.loads(reply.data)
    return answer


def _no_answer(stream: str, error: Exception) -> LogUnavailable:
    return LogUnavailable(f"stream {stream} does not answer: {error or 'time-out'}")


def _refusal(method: str, error: Mapping[str, Any]) -> EventStoreError:
    code, what = error.get("err_code"), error.get("description", "no reason given")
    stream = method.rpartition(".")[2]
    if code in _OUT_OF_RESOURCES:
        return DiskFull(f"the NATS server's JetStream storage ({what})")
    if code in _STORE_FAILED:
        return NatsUnavailable(
            f"JetStream cannot write stream {stream} ({what}): its disk is full or not writable, "
            "see the NATS server's log"
        )
    if code in _NO_LEADER:
        return LogUnavailable(f"JetStream currently has no leader ({what})")
    if code == _SUBJECT_TAKEN:
        return NatsUnavailable(
            f"another stream already has the subjects of {stream} ({what}): remove or change it"
        )
    return NatsUnavailable(f"JetStream rejects {method}: {what} (error {code})")
