"""JetStream in memory, and a NATS client of it that has nats-py's methods.

It implements the part that EventLog and LogWriter use: streams with consecutive sequences that
honour ``Nats-Expected-Last-Sequence``, STREAM.MSG.GET, STREAM.INFO, STREAM.PURGE, direct gets,
single and in batches, and a connection that can be lost together with the data on its way.
``Faults`` decides about errors. The streams survive; a ``SimNats`` is one connection of one
process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import orjson

from eventstore.format.record_size import STORED_OVERHEAD
from simulation.faults import Append, Ask, Faults

_WRONG_LAST_SEQUENCE, _NO_STREAM, _NO_MESSAGE = 10071, 10059, 10037
_WRONG_LAST_ID, _OVER_STREAM = 10070, 10054
_DUPLICATE_WINDOW = 0.1
_MAX_BUFFERED = 64 * 1024 * 1024

Callback = Callable[["SimMsg"], Awaitable[None]]


@dataclass(slots=True)
class SimMsg:
    """What a subscriber of nats-py is given."""

    subject: str
    data: bytes = b""
    headers: dict[str, str] | None = None


@dataclass(slots=True)
class Sent:
    """A message that a client published."""

    subject: str
    data: bytes
    reply: str
    headers: dict[str, str]


@dataclass(slots=True)
class SimStream:
    """A stream: what was stored stays, whatever crashes."""

    name: str
    subject: str
    messages: dict[int, bytes] = field(default_factory=dict)
    """By sequence, in order."""
    history: dict[int, bytes] = field(default_factory=dict)
    """Also those that were purged, for the accounting."""
    last: int = 0
    first: int = 1
    last_id: str = ""
    """``Nats-Msg-Id`` of the last message."""
    max_msg_size: int = -1
    """Bytes of the largest message, headers aside."""
    recent: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Sequence and time of messages by ``Nats-Msg-Id``, to tell when one comes again."""

    def store(self, data: bytes, message_id: str = "") -> int:
        """Append a message; return its sequence."""
        self.last += 1
        self.last_id = message_id
        self.messages[self.last] = self.history[self.last] = data
        return self.last

    def purge(self, keep_from: int) -> int:
        """Remove what stands before a sequence; return how many messages that were."""
        gone = [sequence for sequence in self.messages if sequence < keep_from]
        for sequence in gone:
            del self.messages[sequence]
        self.first = max(self.first, min(keep_from, self.last + 1))
        return len(gone)


class SimServer:
    """The NATS server.

    While ``held`` appends wait in ``waiting``: nothing is stored, nothing answered. ``on_step``
    is called at each point where a process may be killed: before something is sent, and between
    storing and acknowledging.
    """

    def __init__(self, faults: Faults, *streams: SimStream) -> None:
        self.faults = faults
        self.streams = streams
        self.held = False
        self.waiting: deque[tuple[SimNats, Sent]] = deque()
        self.on_step: Callable[[str], None] = lambda _what: None
        self.clients = 0
        self._newest = 0
        self.refusal: dict[str, Any] | None = None
        """The error with which every append is answered; None: none is."""
        self.strays = 0
        """Appends that were stored although the process that sent them was dead."""

    # Appends.

    def receive(self, client: SimNats, message: Sent) -> None:
        """Take what a client published."""
        if self._stream_of(message.subject) is None:
            self._answer_batch(client, message)
        elif self.held:
            self.waiting.append((client, message))
        else:
            self._append(client, message)

    def commit(self, count: int) -> None:
        """Store and acknowledge this many of the waiting appends."""
        for _ in range(min(count, len(self.waiting))):
            client, message = self.waiting.popleft()
            client.deliver(message.reply, self._store(client, message))

    def keep(self, count: int) -> None:
        """Store this many of the waiting appends, acknowledge none, drop the others."""
        self.held = False
        for client, message in list(self.waiting)[:count]:
            self._store(client, message)
        self.waiting.clear()

    def _append(self, client: SimNats, message: Sent) -> None:
        faults = self.faults
        fate = faults.append()
        loop = asyncio.get_running_loop()
        if fate is Append.LOST:
            return
        if fate is Append.UNHEARD:
            client.reply(message.reply, SimMsg("", headers={"Status": "503"}))
            return
        if fate is Append.REFUSED:
            client.reply(message.reply, _json({"error": faults.error()}))
            return
        if fate is Append.STORED_LATE:
            loop.call_later(faults.late(), self._store_and_answer, client, message)
            return
        if fate is Append.STORED_TWICE:
            loop.call_later(faults.late(), self._store_and_answer, client, message)
        answer = self._store(client, message)
        self.on_step("stored, not acknowledged")
        if fate is Append.ACK_LOST:
            return
        if fate is Append.ACK_LATE:
            loop.call_later(faults.late(), client.deliver, message.reply, answer)
            return
        client.reply(message.reply, answer)
        if fate is Append.ACK_TWICE:
            loop.call_later(faults.late(), client.deliver, message.reply, answer)

    def _store_and_answer(self, client: SimNats, message: Sent) -> None:
        client.reply(message.reply, self._store(client, message))

    def _store(self, client: SimNats, message: Sent) -> SimMsg:
        stream = self._stream_of(message.subject)
        assert stream is not None
        if client.number < (self._newest if self.faults.strays else self.clients):
            return _json({"error": self.faults.error()})
        if self.refusal is not None:
            return _json({"error": self.refusal})
        if 0 < stream.max_msg_size < len(message.data):
            description = "message size exceeds maximum allowed"
            return _json({"error": {"err_code": _OVER_STREAM, "description": description}})
        now = asyncio.get_running_loop().time()
        message_id = message.headers.get("Nats-Msg-Id", "")
        sequence, stored_at = stream.recent.get(message_id, (0, -1.0))
        if message_id and sequence and now - stored_at <= _DUPLICATE_WINDOW:
            self.faults.counts["known by its id"] += 1
            return _json({"stream": stream.name, "seq": sequence, "duplicate": True})
        expected = message.headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != stream.last:
            description = f"wrong last sequence: {stream.last}"
            error = {"code": 400, "err_code": _WRONG_LAST_SEQUENCE, "description": description}
            self.faults.counts["refused: wrong last sequence"] += 1
            return _json({"error": error})
        wanted = message.headers.get("Nats-Expected-Last-Msg-Id", stream.last_id)
        if wanted != stream.last_id:
            error = {"code": 400, "err_code": _WRONG_LAST_ID, "description": "wrong last msg ID"}
            self.faults.counts["refused: wrong last message id"] += 1
            return _json({"error": error})
        self.strays += client.dead
        self._newest = client.number
        sequence = stream.store(message.data, message_id)
        stream.recent[message_id] = (sequence, now)
        return _json({"stream": stream.name, "seq": sequence})

    def _stream_of(self, subject: str) -> SimStream | None:
        return next((stream for stream in self.streams if stream.subject == subject), None)

    # Requests.

    def ask(
        self, subject: str, body: bytes, client: SimNats, headers: dict[str, str] | None
    ) -> SimMsg:
        """Answer a request of JetStream's API, or an append that is one."""
        if self._stream_of(subject) is not None:
            self.on_step("before an append")
            answer = self._store(client, Sent(subject, body, "", headers or {}))
            self.on_step("stored, not acknowledged")
            return answer
        *api, name = subject.split(".")
        stream = next((stream for stream in self.streams if stream.name == name), None)
        if stream is None:
            error = {"code": 404, "err_code": _NO_STREAM, "description": "stream not found"}
            return _json({"error": error})
        wanted = orjson.loads(body) if body else {}
        method = ".".join(api).removeprefix("$JS.API.")
        if method == "STREAM.INFO":
            state = {
                "first_seq": stream.first,
                "last_seq": stream.last,
                "messages": len(stream.messages),
                "bytes": sum(map(len, stream.messages.values()))
                + STORED_OVERHEAD * len(stream.messages),
            }
            config = {"name": name, "max_msg_size": stream.max_msg_size}
            return _json({"config": config, "state": state})
        if method == "STREAM.PURGE":
            return _json({"success": True, "purged": stream.purge(wanted["seq"])})
        sequence = wanted.get("seq", stream.last)
        data = stream.messages.get(sequence)
        if method == "DIRECT.GET":
            if data is None:
                return SimMsg("", headers={"Status": "404", "Description": "Message Not Found"})
            return SimMsg("", data, _headers(stream, sequence))
        assert method == "STREAM.MSG.GET", subject
        if data is None:
            error = {"code": 404, "err_code": _NO_MESSAGE, "description": "no message found"}
            return _json({"error": error})
        return _json({"message": {"subject": stream.subject, "seq": sequence}})

    def _answer_batch(self, client: SimNats, message: Sent) -> None:
        """Answer a batched direct get with its messages and an end."""
        fate = self.faults.ask()
        name = message.subject.rpartition(".")[2]
        stream = next(stream for stream in self.streams if stream.name == name)
        wanted = orjson.loads(message.data)
        end = {"Status": "204", "Description": "EOB"}
        if fate in (Ask.IGNORED, Ask.UNHEARD):
            return
        if fate is Ask.REFUSED:
            client.reply(message.reply, SimMsg("", headers={"Status": "503"}))
            return
        sequences = range(max(wanted["seq"], stream.first), stream.last + 1)[: wanted["batch"]]
        if fate is Ask.CUT_SHORT:
            # As the server does when max_bytes is reached: at least one message, then the end.
            sequences = sequences[: self.faults.chance.randint(1, 4)]
        if not sequences:
            end = {"Status": "404", "Description": "Message Not Found"}
        extra = self.faults.late() if fate is Ask.LATE else 0.0
        answers = [SimMsg("", stream.messages[at], _headers(stream, at)) for at in sequences]
        client.reply(message.reply, *answers, SimMsg("", headers=end), extra=extra)


def _headers(stream: SimStream, sequence: int) -> dict[str, str]:
    return {
        "Nats-Stream": stream.name,
        "Nats-Subject": stream.subject,
        "Nats-Sequence": str(sequence),
        "Nats-Last-Sequence": str(stream.last),
    }


def _json(answer: dict[str, Any]) -> SimMsg:
    return SimMsg("", orjson.dumps(answer))


class _Subscription:
    """What ``subscribe`` returns."""

    def __init__(self, subscriptions: dict[str, Callback], subject: str) -> None:
        self._subscriptions = subscriptions
        self._subject = subject

    async def unsubscribe(self) -> None:
        self._subscriptions.pop(self._subject, None)


class SimNats:
    """One process's connection to the server, with the methods of ``DirectClient`` that are used.

    As in nats-py, what is published while the connection is away is kept and sent when it is
    back; what was on its way when it broke is lost, or arrives and is not answered.
    """

    max_payload = 64 * 1024 * 1024

    def __init__(
        self, server: SimServer, on_disconnect: Callable[[], None], *, reads: bool = False
    ) -> None:
        """``reads``: nothing is appended before :meth:`write_from_now_on`."""
        self.number = 0
        if not reads:
            server.clients += 1
            self.number = server.clients
        self.stats = {"reconnects": 0}
        self._server = server
        self._on_disconnect = on_disconnect
        self._name = f"_INBOX.{self.number}"
        self._inboxes = itertools.count(1)
        self._listeners: dict[str, Callable[[str, bytes], None]] = {}
        self._subscriptions: dict[str, Callback] = {}
        self._kept: list[Sent] = []
        self._flying: deque[Sent] = deque()
        """On their way to the server, in order."""
        self._arrives = 0.0
        self._answered = 0.0
        self._epoch = 0
        """Answers of an earlier one are dropped."""
        self._broken = 0
        """How often the connection was lost with what was on its way."""
        self.is_connected = True
        self.is_closed = False
        self.dead = False
        """The process is no more."""

    def write_from_now_on(self) -> None:
        """Let appends of this connection count, and those of older ones no longer."""
        self._server.clients += 1
        self.number = self._server.clients

    # As in nats-py.

    def new_inbox(self) -> str:
        return f"{self._name}.{next(self._inboxes)}"

    async def subscribe(self, subject: str, *, cb: Callback, **_limits: int) -> _Subscription:
        """Subscribe; the callback must not wait for anything."""
        self._subscriptions[subject] = cb
        return _Subscription(self._subscriptions, subject)

    async def listen(self, subject: str, callback: Callable[[str, bytes], None]) -> None:
        self._listeners[subject.removesuffix(".*.*")] = callback

    def send_now(
        self, subject: str, payload: Sequence[bytes], *, reply: str, headers: dict[str, str]
    ) -> bool:
        self._server.on_step("before an append")
        if self.is_connected:
            self._send(Sent(subject, b"".join(payload), reply, headers))
        return self.is_connected or self.dead

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        if self.dead:
            return
        message = Sent(subject, payload, reply, headers or {})
        if self.is_connected:
            self._send(message)
        elif sum(len(kept.data) for kept in self._kept) + len(payload) > _MAX_BUFFERED:
            raise nats.errors.OutboundBufferLimitError
        else:
            self._kept.append(message)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - as in nats-py
        headers: dict[str, str] | None = None,
    ) -> SimMsg:
        faults = self._server.faults
        fate = faults.ask()
        epoch = self._epoch
        there, back = faults.travel(), faults.delay()
        if fate is Ask.LATE:
            back += faults.late()
        lost = fate is Ask.IGNORED or not self.is_connected or there > timeout
        await asyncio.sleep(timeout if lost else there)
        lost = lost or epoch != self._epoch
        if lost:
            raise nats.errors.TimeoutError
        answer = self._server.ask(subject, payload, self, headers)
        if fate is Ask.REFUSED:
            answer = SimMsg("", headers={"Status": "503"})
            if ".DIRECT." not in subject:
                answer = _json({"error": faults.error()})
        await asyncio.sleep(min(back, timeout - there))
        if there + back > timeout or epoch != self._epoch:
            raise nats.errors.TimeoutError
        if fate is Ask.UNHEARD:
            raise nats.errors.NoRespondersError
        return answer

    # What happens to it.

    def _send(self, message: Sent) -> None:
        travel = self._server.faults.travel()
        if not travel and not self._flying:
            self._server.receive(self, message)
            return
        loop = asyncio.get_running_loop()
        self._flying.append(message)
        self._arrives = max(self._arrives, loop.time() + travel)
        loop.call_at(self._arrives, self._arrive, self._broken)

    def _arrive(self, broken: int) -> None:
        if self._flying and broken == self._broken:
            self._server.receive(self, self._flying.popleft())

    def reply(self, inbox: str, *messages: SimMsg, extra: float = 0.0) -> None:
        """Let answers arrive, in order, after the usual time."""
        loop = asyncio.get_running_loop()
        arrives = loop.time() + self._server.faults.delay() + extra
        if not extra:
            self._answered = arrives = max(self._answered, arrives)
        loop.call_at(arrives, self._replied, self._epoch, inbox, messages)

    def _replied(self, epoch: int, inbox: str, messages: tuple[SimMsg, ...]) -> None:
        if epoch == self._epoch:
            for message in messages:
                self.deliver(inbox, message)

    def deliver(self, inbox: str, message: SimMsg) -> None:
        """Give a message to the subscriber of an inbox, if there is one and a connection."""
        if not self.is_connected:
            return
        listener = self._listeners.get(inbox.rsplit(".", 2)[0])
        if listener is not None:
            listener(inbox, message.data)
            return
        callback = self._subscriptions.get(inbox)
        if callback is None:
            return
        waits = callback(SimMsg(inbox, message.data, message.headers)).__await__()
        try:
            next(waits)
        except StopIteration:
            return
        raise AssertionError("a subscriber that waits is not simulated")

    def disconnect(self) -> None:
        """Lose the connection: what was on its way arrives in part, what comes back is lost."""
        if not self.is_connected:
            return
        self._epoch += 1
        self._broken += 1
        self.is_connected = False
        arrive = self._server.faults.chance.randint(0, len(self._flying))
        flying, self._flying = list(self._flying)[:arrive], deque()
        for message in flying:
            self._server.receive(self, message)
        self._on_disconnect()

    def reconnect(self) -> None:
        """Have a connection again: what was kept is sent."""
        if self.is_connected or self.dead:
            return
        self.is_connected = True
        kept, self._kept = self._kept, []
        for message in kept:
            self._send(message)

    def die(self) -> None:
        """End with the process: what the system has taken over for it still arrives, in part."""
        self._epoch += 1
        self.is_connected, self.dead = False, True
        self._kept = []
        keep = self._server.faults.chance.randint(0, len(self._flying))
        self._flying = deque(list(self._flying)[:keep])
