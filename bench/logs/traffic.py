"""Simulates a fleet of clients that connect, publish and leave, for log_generator.py.

There is no broker here and no network. The clients are small state machines that keep the rules
of MQTT, so that what they do can be written as events at once, a few hundred thousand a second.
All chance comes from one seeded generator: the same seed gives the same log.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence

from bench.logs.fleet import Client, Draft, Flavour, Message, make_fleet
from bench.logs.message_queue import QUEUED_AT_MOST, MessageQueue
from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    BrokerStarted,
    LimitsApplied,
    OperatorActed,
    RetainedCleared,
)

_AT_ONCE = 40
"""Clients that connect in one tick."""
_AWAY = 300.0
"""Mean time for which clients stay offline."""
_RECORD = 300
"""Entries of a record in a log in which delays are ticks."""


class Traffic:
    """``clients`` clients; :meth:`tick` lets them act until a record is full.

    ``began_ms`` is when the log begins, ``rate`` how many entries a second of its time has.
    """

    def __init__(self, flavour: Flavour, seed: int, clients: int, began_ms: int, rate: int) -> None:
        self._chance = random.Random(seed)
        self._flavour = flavour
        self._rate = rate
        self._pace = 2 * _RECORD / sum(flavour.record)
        self._later: list[tuple[int, int, Callable[[Client], None], Client]] = []
        self._planned = 0
        self._clients, topics = make_fleet(self._chance, clients)
        self._queue = MessageQueue(flavour, self._chance, topics)
        self._turns = self._forever()
        self.time_ms = began_ms

    def _forever(self) -> Iterator[tuple[Client, int, int]]:
        """Yield the next publishing client, its QoS, and a random number for all other choices."""
        chance = self._chance
        publishers = [client for client in self._clients if client.topics]
        # Some clients publish more than others.
        weights = [1 / (1 + number % 17) for number in range(len(publishers))]
        script = [
            (client, chance.choice((0, 1, 1, 1, 1, 1, 1, 2, 2)), chance.getrandbits(30))
            for client in chance.choices(publishers, weights, k=65_521)
        ]
        while True:
            yield from script

    # Time.

    def start(self, draft: Draft) -> None:
        """Start the broker and connect all clients within the next ticks."""
        self._queue.draft = draft
        draft.add(BrokerStarted("0.1.0"))
        draft.add(LimitsApplied({"max_queued_messages": QUEUED_AT_MOST}))
        self._call_all()

    def crash(self, draft: Draft) -> None:
        """Restart the broker after a kill: its connections have ended."""
        self._queue.draft = draft
        draft.add(BrokerStarted("0.1.0"))
        draft.add(LimitsApplied({"max_queued_messages": QUEUED_AT_MOST}))
        connected = [client for client in self._clients if client.connected]
        for client in connected:
            client.connected = False
        self._later = []
        for client in connected:
            self._close(client, "broker_restarted", back=False)
        self._call_all()

    def unfinished(self, draft: Draft) -> None:
        """Write what a broker would that is killed in the middle of a turn: it counts for nothing.

        Were it to count, a message would be missing at its subscribers, and one be retained.
        """
        client = next(client for client in self._clients if client.topics)
        topic = client.topics[0]
        size = draft.store(self._queue.payloads[0])
        name = self._queue.topics[topic]
        draft.add(MessagePublished(client.name, 1, True, [name], [], [1], size, 0, 1))

    def tick(self, draft: Draft, entries: int) -> None:
        """Run the clients until the record has this many entries or slightly more."""
        mail = self._queue
        mail.draft = draft
        self.time_ms += max(1, entries * 1000 // self._rate)
        mail.schedule.advance()
        while self._later and self._later[0][0] <= mail.schedule.tick:
            _, _, live, client = heapq.heappop(self._later)
            live(client)
        missed = 0
        while draft.entries < entries and missed < len(self._clients):
            client, qos, number = next(self._turns)
            if client.connected:
                mail.publish(client, qos, number)
            else:
                missed += 1

    def _call_all(self) -> None:
        for number, client in enumerate(self._clients):
            self._plan(number // _AT_ONCE, self._connect, client)

    def _at(self, delay: float, live: Callable[[Client], None], client: Client) -> None:
        """Schedule an action of a client after a delay that fits the size of the records."""
        self._plan(int(delay * self._pace), live, client)

    def _plan(self, ticks: int, live: Callable[[Client], None], client: Client) -> None:
        self._planned += 1
        day = self._queue.schedule.tick + 1 + ticks
        heapq.heappush(self._later, (day, self._planned, live, client))

    # Connecting.

    def _connect(self, client: Client) -> None:
        if client.connected:
            return
        resumed = client.known and not client.clean
        if not resumed:
            self._queue.unroute(client)
            client.end()
        client.generation += 1
        client.connected = client.known = True
        tick = self._queue.schedule.tick
        draft = self._queue.draft
        draft.add(
            SessionOpened(
                client.name,
                resumed,
                client.clean,
                4,
                60,
                client.generation,
                f"192.0.2.{client.generation % 250}:{40_000 + tick % 20_000}",
                "fleet" if client.topics else None,
            )
        )
        if client.will is not None:
            topic, qos, retain = client.will
            offset = draft.area
            size = draft.store(self._queue.will_payload(topic))
            name = self._queue.topics[topic]
            draft.add(WillArmed(client.name, name, qos, retain, size, offset))
        if resumed:
            self._queue.resume(client)
        else:
            self._subscribe(client, client.filters)
        self._plan_end(client)

    def _plan_end(self, client: Client) -> None:
        chance = self._chance
        if client.patience:
            live = chance.choice(
                (self._leave, self._leave, self._vanish, self._vanish, self._again, self._change)
            )
            if self._flavour.operators and chance.random() < 0.05:
                live = self._kick
            self._at(chance.expovariate(1 / client.patience), live, client)

    def _subscribe(self, client: Client, filters: Sequence[tuple[str, int]]) -> None:
        if filters:
            self._queue.draft.add(Subscribed(client.name, list(filters)))
        for topic_filter, qos in filters:
            self._queue.route(client, topic_filter, qos)

    def _change(self, client: Client) -> None:
        """Unsubscribe and subscribe again."""
        if not client.connected:
            return
        draft = self._queue.draft
        if client.granted:
            topic_filter = next(iter(client.granted))
            self._queue.drop_waiting(client, topic_filter)
            draft.add(Unsubscribed(client.name, [topic_filter]))
            self._queue.unroute(client, topic_filter)
            wanted = [(name, qos) for name, qos in client.filters if name == topic_filter]
            self._subscribe(client, wanted)
        if client.topics and self._chance.random() < 0.2:
            draft.add(MessageDropped(client.name, "reserved_topic", 1))
        elif 0 in client.granted.values():
            draft.add(MessageDropped(client.name, "slow_reader", self._chance.randint(1, 50)))
        self._plan_end(client)

    # Disconnecting.

    def _leave(self, client: Client) -> None:
        if client.connected:
            if client.will is not None:
                self._queue.draft.add(WillCancelled(client.name))
            self._ended(client, "disconnect")

    def _vanish(self, client: Client) -> None:
        if client.connected:
            self._close(client, self._chance.choice(("closed", "error", "keep_alive")))

    def _kick(self, client: Client) -> None:
        if client.connected:
            self._queue.draft.add(OperatorActed("kick", "ops", client.name, client.name))
            self._close(client, "kicked")
            self._clear_some()

    def _again(self, client: Client) -> None:
        """Connect again while the broker still has the previous connection."""
        if client.connected:
            self._queue.draft.add(SessionTakenOver(client.name, client.generation))
            self._close(client, "taken_over", back=False)
            self._connect(client)

    def _close(self, client: Client, reason: str, *, back: bool = True) -> None:
        """End a connection without DISCONNECT: its will is published."""
        message: Message | None = None
        if client.will is not None:
            topic, qos, retain = client.will
            self._queue.draft.add(WillFired(client.name))
            message = self._queue.will(client, topic, qos, retain=retain)
        self._ended(client, reason, back=back)
        if message is not None:
            self._queue.take_effect([message])

    def _ended(self, client: Client, reason: str, *, back: bool = True) -> None:
        self._queue.draft.add(SessionClosed(client.name, reason, client.generation))
        client.connected = False
        if client.clean:
            self._queue.unroute(client)
            client.end()
        if not back:
            return
        chance = self._chance
        away = chance.expovariate(1 / _AWAY)
        if not client.clean and chance.random() < 0.1:
            self._at(away, self._expire, client)
            away += chance.expovariate(1 / _AWAY)
        self._at(away, self._connect, client)

    def _expire(self, client: Client) -> None:
        if client.known and not client.connected:
            self._queue.draft.add(SessionExpired(client.name, "expired"))
            self._queue.unroute(client)
            client.end()

    def _clear_some(self) -> None:
        """Remove retained messages as an operator."""
        retained = self._queue.retained
        topics = list(retained)[:3]
        if topics:
            draft = self._queue.draft
            names = [self._queue.topics[topic] for topic in topics]
            target = names[0] if len(names) == 1 else f"{len(names)} topics"
            draft.add(OperatorActed("clear_retained", "ops", target))
            draft.add(RetainedCleared(names))
            for topic in topics:
                del retained[topic]
