"""The account of a crash drill: promises, deliveries, and violations.

Every client of a drill reports here the promises and messages that it got. `problems()` checks:

- QoS 1 at least once, QoS 2 exactly once, QoS 0 at most once;
- order: per subscriber, publisher, topic and QoS the first deliveries rise;
- re-delivery: with DUP and under the packet identifier of the first transmission;
- sessions: present whenever they were acknowledged before;
- retained messages: never older than the last one acknowledged;
- wills: sent if the connection broke, not sent after DISCONNECT.

The end of the stream answers a DISCONNECT only if nothing else closed the connection, see
`Account.doubt`.

The methods may be called from any thread.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Self

from harness.packets import Connack, Publish


def clock(time_ms: int) -> str:
    """The time of day, in UTC, of a moment in Unix milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).time().isoformat("milliseconds")


class Closing(NamedTuple):
    """A moment from which a broker may have closed connections, whatever the clients did."""

    time_ms: int
    """Unix time in milliseconds."""
    what: str

    def __str__(self) -> str:
        return f"{clock(self.time_ms)} {self.what}"


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One application message; its payload identifies it, so that every copy can be recognized."""

    publisher: str
    topic: str
    qos: int
    number: int

    @property
    def payload(self) -> bytes:
        return f"{self.publisher}|{self.qos}|{self.number}".encode()

    @classmethod
    def of(cls, received: Publish) -> Self:
        publisher, qos, number = received.payload.decode().split("|")
        return cls(publisher, received.topic, int(qos), int(number))


@dataclass(slots=True)
class Arrivals:
    """All copies of one message that one subscriber was sent."""

    fresh: int = 0
    """Transmissions without DUP."""
    identifiers: set[int] = field(default_factory=set)
    accepted: int = 0
    """Copies the application saw: the receiver's part of QoS 2 hides repeated transmissions."""


class Account:
    """Counts promises and deliveries of one drill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[str] = []
        self._sent: Counter[Message] = Counter()
        self._acknowledged: set[Message] = set()
        self._granted: dict[str, tuple[str, int]] = {}
        self._arrivals: dict[str, dict[Message, Arrivals]] = defaultdict(dict)
        self._order: dict[str, list[Message]] = defaultdict(list)
        self._sessions: set[str] = set()
        self._wills: dict[str, dict[int, str]] = defaultdict(dict)
        self._cancelled: dict[tuple[str, int], tuple[int, int]] = {}
        """When the connections of cancelled wills began and ended."""

    # ------------------------------------------------------------ reporting

    def problem(self, text: str) -> None:
        """Something wrong that a client saw by itself."""
        with self._lock:
            self._found.append(text)

    def connack(self, client_id: str, connack: Connack) -> None:
        """A persistent session was opened or resumed."""
        with self._lock:
            if client_id in self._sessions and not connack.session_present:
                self._found.append(f"{client_id}: the session is lost")
            self._sessions.add(client_id)

    def sent(self, message: Message) -> None:
        """A PUBLISH goes out, for the first time or again."""
        with self._lock:
            self._sent[message] += 1

    def acknowledged(self, message: Message) -> None:
        """PUBACK or PUBCOMP came: the broker has passed the message on."""
        with self._lock:
            self._acknowledged.add(message)

    def subscribed(self, subscriber: str, prefix: str, qos: int) -> None:
        """SUBACK granted `qos` for all topics that start with `prefix`."""
        with self._lock:
            self._granted[subscriber] = (prefix, qos)

    def received(self, subscriber: str, received: Publish, *, accepted: bool) -> None:
        """A PUBLISH came; `accepted` if the receiver's QoS 2 state passed it on."""
        message = Message.of(received)
        with self._lock:
            arrivals = self._arrivals[subscriber].setdefault(message, Arrivals())
            arrivals.fresh += not received.dup
            if received.packet_id is not None:
                arrivals.identifiers.add(received.packet_id)
            if accepted:
                if not arrivals.accepted:
                    self._order[subscriber].append(message)
                arrivals.accepted += 1

    def will(self, client_id: str, number: int, state: str) -> None:
        """The will `number` is "due", or "open" if that is unknown."""
        with self._lock:
            self._wills[client_id][number] = state

    def cancelled(self, client_id: str, number: int, begun_ms: int, ended_ms: int) -> None:
        """DISCONNECT was sent, and then the stream ended: the will `number` must not come.

        The times (Unix, milliseconds) are those at which CONNECT was sent and the end was seen.
        """
        with self._lock:
            self._wills[client_id][number] = "cancelled"
            self._cancelled[client_id, number] = begun_ms, ended_ms

    def doubt(self, closings: Iterable[Closing]) -> list[str]:
        """Leave open which wills were cancelled while a broker closed connections by itself.

        For a client the end of its stream is then the same as the answer to its DISCONNECT.
        Returns the wills, each with its reason.
        """
        left = []
        with self._lock:
            for closing in closings:
                for (client_id, number), (begun, ended) in self._cancelled.items():
                    wills = self._wills[client_id]
                    if begun <= closing.time_ms <= ended and wills[number] == "cancelled":
                        wills[number] = "open"
                        left.append(f"will {number} of {client_id}: {closing}")
        return left

    # --------------------------------------------------------------- asking

    def shared(self) -> tuple[list[str], list[str]]:
        """For members of one shared subscription: what they lack, and all other problems."""
        with self._lock:
            accepted: Counter[Message] = Counter()
            for arrivals in self._arrivals.values():
                accepted.update({message: one.accepted for message, one in arrivals.items()})
            lacking = [
                f"{message} is lost"
                for message in sorted(self._acknowledged)
                if message.qos and not accepted[message]
            ]
            twice = [
                f"{message} came {count} times"
                for message, count in sorted(accepted.items())
                if count > 1 and message.qos != 1
            ]
            return lacking, [*self._found, *twice]

    def retained_bounds(self) -> dict[str, tuple[int, int]]:
        """Per retained topic: the last number acknowledged, or -1, and the last one sent."""
        bounds: dict[str, tuple[int, int]] = {}
        with self._lock:
            for message in self._sent:
                if message.topic.startswith("retained/"):
                    low, high = bounds.get(message.topic, (-1, -1))
                    if message in self._acknowledged:
                        low = max(low, message.number)
                    bounds[message.topic] = low, max(high, message.number)
        return bounds

    def missing(self) -> list[str]:
        """What was promised and has not arrived yet."""
        with self._lock:
            return self._missing()

    def arrived(self, subscriber: str) -> int:
        """How many different messages the subscriber was sent."""
        with self._lock:
            return len(self._arrivals[subscriber])

    def totals(self) -> dict[str, int]:
        with self._lock:
            return {
                "sent": len(self._sent),
                "acknowledged": len(self._acknowledged),
                "arrived": sum(len(arrivals) for arrivals in self._arrivals.values()),
            }

    def problems(self) -> list[str]:
        """Everything that breaks a promise; empty if the account is clean."""
        with self._lock:
            found = [*self._found, *self._missing()]
            for subscriber, arrivals in self._arrivals.items():
                for message, copies in arrivals.items():
                    found += self._judge(subscriber, message, copies)
            for subscriber, order in self._order.items():
                found += self._judge_order(subscriber, order)
            found += self._judge_wills()
            return found

    # -------------------------------------------------------------- judging

    def _missing(self) -> list[str]:
        found = []
        for subscriber, (prefix, granted) in self._granted.items():
            arrived = self._arrivals[subscriber]
            found += [
                f"{subscriber}: {message} was acknowledged and never arrived"
                for message in self._acknowledged
                if message.topic.startswith(prefix)
                and min(message.qos, granted)
                and message not in arrived
            ]
        watchers = [name for name, (prefix, _) in self._granted.items() if prefix == "will/"]
        for watcher in watchers:
            seen = {(m.publisher, m.number) for m in self._arrivals[watcher]}
            found += [
                f"{watcher}: the will {number} of {client_id} was due and never came"
                for client_id, wills in self._wills.items()
                for number, state in wills.items()
                if state == "due" and (client_id, number) not in seen
            ]
        return found

    def _judge(self, subscriber: str, message: Message, copies: Arrivals) -> list[str]:
        found = []
        name = f"{subscriber}: {message}"
        qos = min(message.qos, self._granted[subscriber][1])
        is_will = message.topic.startswith("will/")
        if message not in self._sent and not is_will:
            found.append(f"{name} was never sent")
        # At QoS 1 each PUBLISH of the publisher may become a message of its own.
        most = self._sent[message] if message.qos == 1 and not is_will else 1
        if copies.accepted > most and (qos != 1 or message.qos == 0):
            found.append(f"{name} was delivered {copies.accepted} times")
        if copies.fresh > most:
            found.append(f"{name} came {copies.fresh} times without DUP")
        if len(copies.identifiers) > most:
            found.append(f"{name} came with the identifiers {sorted(copies.identifiers)}")
        return found

    def _judge_order(self, subscriber: str, order: list[Message]) -> list[str]:
        found = []
        last: dict[tuple[str, str, int], Message] = {}
        for message in order:
            if message.topic.startswith("will/"):
                continue
            stream = (message.publisher, message.topic, message.qos)
            if stream in last and message.number < last[stream].number:
                found.append(f"{subscriber}: {message} came after {last[stream].number}")
            last[stream] = message
        return found

    def _judge_wills(self) -> list[str]:
        found = []
        for subscriber, arrivals in self._arrivals.items():
            for message in arrivals:
                client_id, number = message.publisher, message.number
                if (
                    message.topic.startswith("will/")
                    and self._wills[client_id].get(number) == "cancelled"
                ):
                    begun, ended = map(clock, self._cancelled[client_id, number])
                    found.append(
                        f"{subscriber}: will {number} of {client_id} was cancelled, but came: "
                        f"connected at {begun}, end of the stream behind DISCONNECT at {ended}"
                    )
        return found
