"""A drill: a broker under load at every QoS, struck at random moments, and its account.

Each client keeps its session through every crash and reports to the account. It follows the
standard: after every reconnect unacknowledged PUBLISH packets are sent again with DUP, and PUBREL
packets are sent again, in their order (4.4, 4.6).
"""

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness import packets as p
from harness.broker import Broker
from harness.drillaccount import Account, Closing, Message, clock
from harness.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Will
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

ROUNDS = int(os.environ.get("FOLDMQ_DRILL_ROUNDS", "1"))
"""Strikes per drill."""
KILLS = min(4, ROUNDS + 1)
"""Kills per test whose kills are one after the other, at places of its own."""
PAUSE = 0.008 if ROUNDS > 2 else 0.02
"""Seconds between two messages of a publisher: the fault matters more than the load."""
FEW = max(1, ROUNDS // 2)
"""Strikes per drill whose strikes take long."""
SEED = int(os.environ.get("FOLDMQ_DRILL_SEED", "1"))
"""Of the moments, the places and the load."""
ANSWER = 25.0
"""Seconds a broker may need to answer while it or its NATS server comes back."""
LOAD = 50
"""Messages of which more must be acknowledged before the load may end."""
SETTLE = 40.0
"""Seconds within which all clients must be done and all messages must have arrived."""
LINGER = 5.0
"""Seconds after which a broker closes the connection of a client that has sent DISCONNECT, even if
its log is stuck and the end is not recorded."""


class DrillClient(threading.Thread, ABC):
    """Connects again and again until it is done; `life` is one connection."""

    def __init__(self, account: Account, port: int, client_id: str) -> None:
        super().__init__(name=client_id, daemon=True)
        self.account = account
        self.port = port
        self.client_id = client_id
        self.finishing = threading.Event()
        self.done = False

    def run(self) -> None:
        while not self.done:
            try:
                with RawClient(self.port) as client:
                    self.life(client)
            except (ConnectionClosedError, OSError):
                time.sleep(0.05)
            except AssertionError as error:
                self.account.problem(f"{self.client_id}: {error}")
                self.done = True

    @abstractmethod
    def life(self, client: RawClient) -> None:
        """What it does with one connection."""

    def open(self, client: RawClient) -> bool:
        """Opens the persistent session; False if the server is not available yet."""
        connack = client.connect(self.client_id, clean=False, will=self.will())
        if connack.code == 3:
            time.sleep(0.1)
            return False
        assert connack.code == 0, f"{connack}"
        self.account.connack(self.client_id, connack)
        return True

    def will(self) -> Will | None:
        return None

    def finish(self, timeout: float) -> None:
        """Asks the client to end and waits for it."""
        self.finishing.set()
        self.join(timeout)
        if self.is_alive():
            self.account.problem(f"{self.client_id}: not done within {timeout} s")
            self.done = True


@dataclass(slots=True)
class Flight:
    message: Message
    released: bool = False


class Publisher(DrillClient):
    """Publishes to its topics at all QoS levels, with a window of unacknowledged messages."""

    def __init__(
        self,
        account: Account,
        port: int,
        client_id: str,
        topics: list[str],
        *,
        seed: int,
        window: int = 16,
        retain: bool = False,
    ) -> None:
        super().__init__(account, port, client_id)
        self._topics = topics
        self._random = random.Random(seed)
        self._window = window
        self._retain = retain
        self._flights: dict[int, Flight] = {}
        self._next_id = 0
        self._number = 0

    def life(self, client: RawClient) -> None:
        if not self.open(client):
            return
        self._send_again(client)
        while True:
            if self.finishing.is_set() and not self._flights:
                client.disconnect()
                self.done = True
                return
            while not self.finishing.is_set() and len(self._flights) < self._window:
                self._publish(client)
                time.sleep(PAUSE)
            self._take(client, client.receive(ANSWER))

    def _send_again(self, client: RawClient) -> None:
        for packet_id, flight in self._flights.items():
            if flight.released:
                client.send(p.pubrel(packet_id))
            else:
                self.account.sent(flight.message)
                client.send(self._packet(flight.message, packet_id, dup=True))

    def _packet(self, message: Message, packet_id: int | None, *, dup: bool = False) -> bytes:
        return p.publish(
            message.topic, message.payload, message.qos, packet_id, dup=dup, retain=self._retain
        )

    def _publish(self, client: RawClient) -> None:
        qos = self._random.choice((1, 2) if self._retain else (0, 1, 1, 2, 2))
        self._number += 1
        message = Message(self.client_id, self._random.choice(self._topics), qos, self._number)
        packet_id = None
        if qos:
            packet_id = self._unused_id()
            self._flights[packet_id] = Flight(message)
        self.account.sent(message)
        client.send(self._packet(message, packet_id))

    def _unused_id(self) -> int:
        while True:
            self._next_id = self._next_id % 65_535 + 1
            if self._next_id not in self._flights:
                return self._next_id

    def _take(self, client: RawClient, received: p.Packet) -> None:
        assert isinstance(received, Puback | Pubrec | Pubcomp), f"received {received}"
        flight = self._flights.get(received.packet_id)
        if isinstance(received, Pubrec):
            if flight is not None:
                flight.released = True
            client.send(p.pubrel(received.packet_id))
        elif flight is not None:
            self.account.acknowledged(flight.message)
            del self._flights[received.packet_id]


class Subscriber(DrillClient):
    """Holds one subscription; cuts its own connection every now and then if `flapping`."""

    def __init__(
        self,
        account: Account,
        port: int,
        client_id: str,
        prefix: str,
        qos: int,
        *,
        flapping: random.Random | None = None,
    ) -> None:
        super().__init__(account, port, client_id)
        self.ready = threading.Event()
        self._prefix = prefix
        self._qos = qos
        self._flapping = flapping
        self._unreleased: dict[int, Message] = {}

    def subscribe_and_leave(self) -> None:
        """Opens the session, subscribes and disconnects, without starting the thread."""
        with RawClient(self.port) as client:
            self.open(client)
            self._subscribe(client)
            client.disconnect()

    def life(self, client: RawClient) -> None:
        if not self.open(client):
            return
        if not self.ready.is_set():
            self._subscribe(client)
        end = time.monotonic() + (self._flapping.uniform(0.1, 0.8) if self._flapping else 3600)
        while not self.finishing.is_set():
            if time.monotonic() > end:
                client.reset()
                return
            try:
                received = client.receive(0.1)
            except TimeoutError:
                continue
            self._take(client, received)
        client.disconnect()
        self.done = True

    def _subscribe(self, client: RawClient) -> None:
        client.send(p.subscribe(1, (f"{self._prefix}#", self._qos)))
        received = client.receive(ANSWER)
        assert received == Suback(1, (self._qos,)), f"received {received}"
        self.account.subscribed(self.client_id, self._prefix, self._qos)
        self.ready.set()

    def _take(self, client: RawClient, received: p.Packet) -> None:
        if isinstance(received, Pubrel):
            self._unreleased.pop(received.packet_id, None)
            client.send(p.pubcomp(received.packet_id))
            return
        assert isinstance(received, Publish), f"received {received}"
        message = Message.of(received)
        accepted = True
        if received.qos == 2 and received.packet_id is not None:
            before = self._unreleased.get(received.packet_id)
            assert before in (None, message), f"identifier of {before} used for {received}"
            accepted = before is None
            self._unreleased[received.packet_id] = message
        self.account.received(self.client_id, received, accepted=accepted)
        if received.packet_id is not None:
            answer = p.puback if received.qos == 1 else p.pubrec
            client.send(answer(received.packet_id))


class ClientWithWill(DrillClient):
    """Connects with a will that bears a number of its own, and ends in every possible way.

    `crashes` is odd while something is being killed and has another value afterwards: only when
    nothing was killed meanwhile is it certain that the end of the stream answers the DISCONNECT.
    It answers no DISCONNECT that was sent behind it, nor one that was sent `LINGER` before.
    """

    def __init__(
        self,
        account: Account,
        port: int,
        client_id: str,
        *,
        seed: int,
        crashes: Callable[[], int],
        note: Callable[[str], None],
    ) -> None:
        super().__init__(account, port, client_id)
        self._random = random.Random(seed)
        self._crashes = crashes
        self._note = note
        self._number = 0

    def will(self) -> Will:
        payload = Message(self.client_id, "", 1, self._number).payload
        return Will(f"will/{self.client_id}", payload, 1)

    def life(self, client: RawClient) -> None:
        before, begun = self._crashes(), now_ms()
        self._number += 1
        self.account.will(self.client_id, self._number, "open")
        if not self.open(client):
            return
        self.account.will(self.client_id, self._number, "due")
        last = self.finishing.wait(self._random.uniform(0.1, 0.6))
        if not last and self._random.random() < 0.6:
            client.reset()
            return
        if self._has_ended(client):
            if self._crashes() == before and not before % 2:
                self._note(f"connection of {self.client_id} with will {self._number} closed")
            return
        self.account.will(self.client_id, self._number, "open")
        sent = time.monotonic()
        client.disconnect()
        waited, ended = time.monotonic() - sent, now_ms()
        if self._crashes() == before and not before % 2:
            self.done = last
            if waited < LINGER:
                self.account.cancelled(self.client_id, self._number, begun, ended)

    def _has_ended(self, client: RawClient) -> bool:
        """Whether the broker has closed the connection, so that no DISCONNECT reaches it."""
        try:
            received = client.receive(0.001)
        except TimeoutError:
            return False
        except ConnectionClosedError:
            return True
        raise AssertionError(f"received {received}")


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class Drill:
    """One broker, its clients and their account.

    `closings` returns when a broker of several may have closed connections by itself; it is called
    only after an error.
    """

    def __init__(
        self, broker: Broker, seed: int, closings: Callable[[], Iterable[Closing]] = tuple
    ) -> None:
        self.broker = broker
        self._closings = closings
        self.account = Account()
        self.random = random.Random(seed)
        self.seed = seed
        self.crashes = 0
        """Odd while something is being done to the broker."""
        self.notes: list[str] = []
        """What was done, for the report."""
        port = broker.port
        account = self.account
        flapping = random.Random(seed + 1)
        self.subscribers = [
            Subscriber(account, port, "online2", "data/", 2),
            Subscriber(account, port, "online1", "data/", 1),
            Subscriber(account, port, "online0", "data/", 0),
            Subscriber(account, port, "flapping", "data/", 2, flapping=flapping),
            Subscriber(account, port, "retained", "retained/", 2),
            Subscriber(account, port, "wills", "will/", 1),
        ]
        self.absent = Subscriber(account, port, "absent", "data/", 2)
        self.publishers = [
            Publisher(account, port, f"pub{n}", [f"data/{n}/a", "data/both"], seed=seed + 10 + n)
            for n in range(3)
        ]
        names = [f"retained/{n}" for n in range(5)]
        self.publishers.append(
            Publisher(account, port, "keeper", names, seed=seed + 20, window=1, retain=True)
        )
        self.mortals = [
            ClientWithWill(
                account,
                port,
                f"mortal{n}",
                seed=seed + 30 + n,
                crashes=lambda: self.crashes,
                note=self._note,
            )
            for n in range(2)
        ]

    def _note(self, what: str) -> None:
        """Notes what happened now."""
        self.notes.append(f"{clock(now_ms())} {what}")

    def start(self) -> None:
        self.absent.subscribe_and_leave()
        for subscriber in self.subscribers:
            subscriber.start()
            assert subscriber.ready.wait(15), f"{subscriber.name} never got its SUBACK"
        for client in [*self.publishers, *self.mortals]:
            client.start()

    def strike(self, blow: Callable[[], None], most: float = 2.0) -> None:
        """Waits for a random moment under load, strikes, and looks whether the broker is back."""
        time.sleep(self.random.uniform(min(0.5, most / 2), most))
        self.crashes += 1
        self._note("strike begins")
        blow()
        self._note("strike ends")
        self.crashes += 1
        check_retained(self.account, self.broker.port)

    def settle(self) -> None:
        """Ends the load, lets everything arrive, and ends the clients."""
        time.sleep(self.random.uniform(0.2, 0.8))
        until(lambda: self.account.totals()["acknowledged"] > LOAD, "load", SETTLE)
        for client in [*self.publishers, *self.mortals]:
            client.finish(SETTLE)
        self.absent.start()
        deadline = time.monotonic() + SETTLE
        while self.account.missing() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        for client in [*self.subscribers, self.absent]:
            client.finish(SETTLE)
        check_retained(self.account, self.broker.port)

    def resume_offline_subscriber(self) -> tuple[int, int]:
        """How many messages the subscriber that was away is given, and how many it should be too.

        For controls: the load was abandoned.
        """
        self.absent.start()
        before, arrived = -1, 0
        while before < arrived:
            time.sleep(1)
            before, arrived = arrived, self.account.arrived(self.absent.name)
        self.absent.finish(SETTLE)
        lost = [one for one in self.account.missing() if one.startswith(f"{self.absent.name}: ")]
        return arrived, len(lost)

    def abandon(self) -> None:
        """Ends the load and all receivers, whatever they wait for."""
        for client in [*self.publishers, *self.mortals, *self.subscribers]:
            client.done = True
            client.finishing.set()

    def judge(self) -> None:
        """Settles the account: there was load, and every promise was kept."""
        self.settle()
        problems = self.account.problems()
        if problems:
            closings = sorted(self._closings())
            self.notes += map(str, closings)
            self.notes += [f"left open: {one}" for one in self.account.doubt(closings)]
            problems = self.account.problems()
        totals = self.account.totals()
        head = f"seed {self.seed}: {len(problems)} problems, {totals}"
        # There may be hundreds that never arrived; what else went wrong says why.
        problems.sort(key=lambda one: one.endswith("never arrived"))
        assert not problems, "\n".join([head, *self.notes, *problems[:40]])


def strike_at(drill: Drill, victim: str) -> None:
    """Kills a part of the broker, and brings back whatever does not come back by itself."""
    broker = drill.broker
    if victim == "broker":
        broker.restart(kill=True)
    elif victim == "nats":
        broker.kill_nats()
    elif victim == "both":
        broker.kill_nats()
        time.sleep(drill.random.uniform(0, 0.05))
        broker.restart(kill=True)
    else:
        broker.restart()


def check_retained(account: Account, port: int) -> None:
    """A new subscriber must find every retained message at least as new as was acknowledged."""
    floor = account.retained_bounds()
    seen: dict[str, int] = {}
    with _visitor(port) as client:
        client.send(p.subscribe(1, ("retained/#", 1)))
        message = client.receive(ANSWER)
        end = time.monotonic() + 0.7  # new messages follow without a pause
        while time.monotonic() < end:
            if isinstance(message, Publish) and message.retain:
                seen.setdefault(message.topic, Message.of(message).number)
            try:
                message = client.receive(0.3)
            except TimeoutError:
                break
    ceiling = account.retained_bounds()
    for topic, (low, _) in floor.items():
        if low >= 0 and not low <= seen.get(topic, -1) <= ceiling[topic][1]:
            account.problem(f"{topic}: retained {seen.get(topic)}, acknowledged {low}")


def _visitor(port: int) -> RawClient:
    """A clean session, as soon as the broker takes one."""
    deadline = time.monotonic() + ANSWER
    while True:
        try:
            client = RawClient(port)
            code = client.connect("", clean=True).code
        except (ConnectionClosedError, OSError):
            code = 3
        if code == 0:
            return client
        assert code == 3, f"CONNACK {code}"
        assert time.monotonic() < deadline, f"no connection within {ANSWER} s"
        time.sleep(0.1)
