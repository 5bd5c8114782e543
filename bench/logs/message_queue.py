"""Simulates message delivery between the clients of a fleet: publish, deliver, acknowledge.

Later actions of a client wait in a calendar of ticks; a tick is a record.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from bench.logs.fleet import KINDS, RETAINED_KIND, Client, Draft, Flavour, Message, Waiting
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Released,
)
from eventstore.format.positions import Position, to_runs
from protocol.mqtt.topic_trie import TopicTrie

_DAYS = 256
"""Ticks that the calendar reaches ahead; more than any client's delay."""
QUEUED_AT_MOST = 1000

Action: TypeAlias = Callable[[Client, list[int]], None]
"""An action of a client with packet identifiers."""


class Schedule:
    """Pending answers of clients, by tick."""

    def __init__(self) -> None:
        self.tick = 0
        self._days: list[list[tuple[Action, Client, int, list[int]]]] = [[] for _ in range(_DAYS)]

    def soon(self, do: Action, client: Client, pids: list[int]) -> None:
        """Schedule an action of a client after its delay, unless its connection ends before."""
        low, high = client.delay
        # A random number for every acknowledgement would double the cost.
        day = self.tick + low + (pids[0] * 7919 + self.tick) % (high - low + 1)
        self._days[day % _DAYS].append((do, client, client.generation, pids))

    def advance(self) -> None:
        """Begin the next tick, and do its pending actions."""
        self.tick += 1
        today = self.tick % _DAYS
        due, self._days[today] = self._days[today], []
        for do, client, generation, pids in due:
            if client.connected and client.generation == generation:
                do(client, pids)


class MessageQueue:
    """Routes, queues and retained messages; writes events into ``draft``."""

    def __init__(self, flavour: Flavour, chance: random.Random, topics: list[str]) -> None:
        self.schedule = Schedule()
        self.draft = Draft(0)
        self.retained: dict[int, Message] = {}
        self.topics = topics
        self.payloads = [
            (b'{"value":%d,"unit":"' % chance.randrange(10**6)).ljust(chance.randint(24, 100), b"x")
            + b'"}'
            for _ in range(997)
        ]
        self._flavour = flavour
        self._routes: list[list[tuple[Client, str, int]]] = [[] for _ in topics]
        self._matching: dict[str, list[int]] = {}
        self._index: TopicTrie[int] = TopicTrie()
        for number, topic in enumerate(topics):
            self._index.set(topic, number)

    # Routing.

    def route(self, client: Client, topic_filter: str, qos: int) -> None:
        """Deliver matching messages and retained messages to a client."""
        client.granted[topic_filter] = qos
        found = self._topics_of(topic_filter)
        for topic in found:
            self._routes[topic].append((client, topic_filter, qos))
        kept = [self.retained[topic] for topic in found if topic in self.retained]
        kept.sort(key=lambda message: message.ref)
        for wanted in (1, 2):
            some = [message for message in kept if message.qos == wanted]
            if some and qos:
                self._deliver(client, topic_filter, min(qos, wanted), some, retain=True)

    def unroute(self, client: Client, only: str | None = None) -> None:
        """Take one filter, or all, from a client."""
        for topic_filter in [only] if only is not None else list(client.granted):
            qos = client.granted.pop(topic_filter)
            for topic in self._topics_of(topic_filter):
                self._routes[topic].remove((client, topic_filter, qos))

    def _topics_of(self, topic_filter: str) -> list[int]:
        found = self._matching.get(topic_filter)
        if found is None:
            found = self._matching[topic_filter] = sorted(self._index.match(topic_filter))
        return found

    # Publishing.

    def publish(self, client: Client, qos: int, number: int) -> None:
        """Publish messages determined by a random number."""
        least, most = self._flavour.messages
        count = least if least == most else least + number % (most - least + 1)
        mine = client.topics
        first = number >> 10
        topic = mine[first % len(mine)]
        retain = topic % len(KINDS) == RETAINED_KIND
        if count == 1 or retain or not qos:
            # At QoS 0 only retained messages are recorded, and a batch has one RETAIN flag.
            self._publish_one(client, topic, qos if retain or qos else 1, number, retain=retain)
            return
        chosen = [mine[(first + at) % len(mine)] for at in range(count)]
        draft, payloads = self.draft, self.payloads
        offset = draft.area
        sizes = [draft.store(payloads[(number + at) % len(payloads)]) for at in range(count)]
        pids = client.choose_pids(count)
        topics, which = self._distinct(chosen)
        event = MessagePublished(
            client.name, qos, False, topics, which, to_runs(pids), sizes, offset, count
        )
        base = draft.add(event, count)
        messages = [
            Message(topic, ref, qos, False, size)
            for ref, (topic, size) in enumerate(zip(chosen, sizes, strict=True), base)
        ]
        self._published(client, pids, messages)

    def _distinct(self, chosen: list[int]) -> tuple[list[str], list[int]]:
        """Return the distinct topics, and for each message the index of its topic."""
        number: dict[int, int] = {}
        which = [number.setdefault(topic, len(number)) for topic in chosen]
        return [self.topics[topic] for topic in number], which if len(number) > 1 else []

    def _publish_one(
        self, client: Client, topic: int, qos: int, number: int, *, retain: bool
    ) -> None:
        clears = retain and number % 7 == 0
        payload = b"" if clears else self.payloads[number % len(self.payloads)]
        draft = self.draft
        offset = draft.area
        size = draft.store(payload)
        pids = client.choose_pids(1) if qos else []
        event = MessagePublished(
            client.name, qos, retain, [self.topics[topic]], [], to_runs(pids), size, offset, 1
        )
        self._published(client, pids, [Message(topic, draft.add(event), qos, retain, size)])

    def _published(self, client: Client, pids: list[int], messages: list[Message]) -> None:
        if messages[0].qos < 2:
            self.take_effect(messages)
        else:
            client.inbound.update(zip(pids, messages, strict=True))
            self.schedule.soon(self.release, client, pids)

    def will(self, client: Client, topic: int, qos: int, *, retain: bool) -> Message:
        """Publish a client's will; it is not delivered yet."""
        draft = self.draft
        offset = draft.area
        size = draft.store(self.will_payload(topic))
        event = MessagePublished(
            client.name, qos, retain, [self.topics[topic]], [], [], size, offset, 1, will=True
        )
        return Message(topic, draft.add(event), qos, retain, size)

    def will_payload(self, topic: int) -> bytes:
        """Return the payload of a will on a topic."""
        return self.payloads[topic % len(self.payloads)]

    def release(self, client: Client, pids: list[int]) -> None:
        """Apply a publisher's QoS 2 messages."""
        known = [pid for pid in pids if pid in client.inbound]
        for some in self._parts(known):
            messages = [client.inbound.pop(pid) for pid in some]
            refs = to_runs([message.ref for message in messages])
            self.draft.add(Released(client.name, to_runs(some), refs), len(some))
            self.take_effect(messages)

    def take_effect(self, messages: list[Message]) -> None:
        """Retain messages of one QoS, and deliver them to all subscribers."""
        for message in messages:
            if message.retain:
                if message.size:
                    self.retained[message.topic] = message
                else:
                    self.retained.pop(message.topic, None)
        qos = messages[0].qos
        if not qos:
            return
        if len(messages) == 1:
            for client, topic_filter, granted in self._routes[messages[0].topic]:
                if granted:
                    self._deliver(client, topic_filter, min(qos, granted), messages, retain=False)
            return
        groups: dict[tuple[Client, str, int], list[Message]] = {}
        for message in messages:
            for route in self._routes[message.topic]:
                if route[2]:
                    groups.setdefault(route, []).append(message)
        for (client, topic_filter, granted), some in groups.items():
            self._deliver(client, topic_filter, min(qos, granted), some, retain=False)

    # Delivery.

    def _deliver(
        self,
        client: Client,
        topic_filter: str,
        qos: int,
        messages: Sequence[Message],
        *,
        retain: bool,
    ) -> None:
        sent = 0
        if client.connected and not client.waiting:
            free = client.room
            while sent < len(messages) and free > 0:
                some = messages[sent : sent + min(free, self._flavour.together)]
                refs = [message.ref for message in some]
                self._send(client, topic_filter, qos, refs, retain=retain, queued=-1)
                sent += len(some)
                free -= len(some)
        if sent < len(messages):
            self._enqueue(client, topic_filter, qos, messages[sent:], retain=retain)

    def _send(
        self,
        client: Client,
        topic_filter: str,
        qos: int,
        refs: list[Position],
        *,
        retain: bool,
        queued: int,
    ) -> None:
        pids = client.take_pids(len(refs))
        event = Delivered(
            client.name, topic_filter, qos, to_runs(pids), to_runs(refs), retain, queued
        )
        self.draft.add(event, len(pids))
        for pid in pids:
            client.inflight[pid] = qos
        self.schedule.soon(self._ack if qos == 1 else self._receive, client, pids)

    def _enqueue(
        self,
        client: Client,
        topic_filter: str,
        qos: int,
        messages: Sequence[Message],
        *,
        retain: bool,
    ) -> None:
        fitting = max(0, QUEUED_AT_MOST - len(client.waiting))
        together = self._flavour.together
        fit = messages[:fitting]
        for start in range(0, len(fit), together):
            some = fit[start : start + together]
            refs = [message.ref for message in some]
            size = sum(message.size for message in some)
            self.draft.add(
                Queued(client.name, topic_filter, qos, to_runs(refs), size, retain), len(some)
            )
        client.waiting.extend(
            Waiting(message.ref, topic_filter, qos, retain, message.size) for message in fit
        )
        for start in range(fitting, len(messages), together):
            refs = [message.ref for message in messages[start : start + together]]
            self.draft.add(
                MessageDropped(
                    client.name, "queue_messages", len(refs), to_runs(refs), topic_filter
                )
            )

    def drop_waiting(self, client: Client, topic_filter: str) -> None:
        """Drop the queued messages of a removed subscription."""
        gone = [waiting for waiting in client.waiting if waiting.filter == topic_filter]
        if not gone:
            return
        client.waiting = deque(one for one in client.waiting if one.filter != topic_filter)
        refs = to_runs([waiting.ref for waiting in gone])
        size = sum(waiting.size for waiting in gone)
        self.draft.add(
            MessageDropped(client.name, "unsubscribed", len(gone), refs, topic_filter, size)
        )

    def resume(self, client: Client) -> None:
        """Send unfinished deliveries again, then queued messages."""
        schedule, draft = self.schedule, self.draft
        for pids in self._parts(list(client.releasing)):
            draft.add(Redelivered(client.name, to_runs(pids), "resumed"), len(pids))
            schedule.soon(self._complete, client, pids)
        for pids in self._parts(list(client.inflight)):
            draft.add(Redelivered(client.name, to_runs(pids), "resumed"), len(pids))
            for qos, answer in ((1, self._ack), (2, self._receive)):
                some = [pid for pid in pids if client.inflight[pid] == qos]
                if some:
                    schedule.soon(answer, client, some)
        for pids in self._parts(list(client.inbound)):
            schedule.soon(self.release, client, pids)
        self._drain(client)

    def _parts(self, values: list[int]) -> Iterator[list[int]]:
        together = self._flavour.together
        for start in range(0, len(values), together):
            yield values[start : start + together]

    def _drain(self, client: Client) -> None:
        """Send queued messages while the window has room."""
        waiting = client.waiting
        free = client.room
        while waiting and free > 0:
            head = waiting[0]
            refs: list[Position] = []
            size = 0
            while waiting and len(refs) < min(free, self._flavour.together):
                one = waiting[0]
                if (one.filter, one.qos, one.retain) != (head.filter, head.qos, head.retain):
                    break
                waiting.popleft()
                refs.append(one.ref)
                size += one.size
            self._send(client, head.filter, head.qos, refs, retain=head.retain, queued=size)
            free -= len(refs)

    # Acknowledgements.

    def _ack(self, client: Client, pids: list[int]) -> None:
        if client.delay[0] > 10 and pids[0] % 8 == 0 and self.schedule.tick % 2:
            # Too late: it is sent again before the answer comes.
            self.draft.add(Redelivered(client.name, to_runs(pids), "ack_wait"), len(pids))
            self.schedule.soon(self._ack, client, pids)
            return
        for pid in pids:
            del client.inflight[pid]
        self.draft.add(Acked(client.name, to_runs(pids)), len(pids))
        if client.waiting:
            self._drain(client)

    def _receive(self, client: Client, pids: list[int]) -> None:
        for pid in pids:
            client.releasing[pid] = client.inflight.pop(pid)
        self.draft.add(Received(client.name, to_runs(pids)), len(pids))
        self.schedule.soon(self._complete, client, pids)

    def _complete(self, client: Client, pids: list[int]) -> None:
        for pid in pids:
            del client.releasing[pid]
        self.draft.add(Completed(client.name, to_runs(pids)), len(pids))
        if client.waiting:
            self._drain(client)
