"""Clients of the logs that log_generator.py writes, and the state of each."""

import random
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position, position

PACKET_IDS = 65_535
PLANT_CLIENTS = 100
"""Clients of a plant; each plant has ten lines."""
KINDS = ("temperature", "pressure", "speed", "state", "energy", "torque", "count", "alarm")
RETAINED_KIND = KINDS.index("state")


@dataclass(frozen=True)
class Flavour:
    """The composition of a log."""

    messages: tuple[int, int]
    """Minimum and maximum number of messages that a publisher sends at once."""
    record: tuple[int, int]
    """Entries of a record."""
    together: int
    """Maximum entries of one event."""
    crashes: int = 0
    """Number of times that the broker is killed and restarted."""
    operators: bool = False
    """An operator kicks clients and clears retained messages."""


FLAVOURS = {
    "single": Flavour((1, 1), (100, 500), 1),
    "bulk": Flavour((20, 200), (2_000, 12_000), 1_000),
    "mixed": Flavour((1, 40), (100, 3_000), 100, crashes=2, operators=True),
}


class Draft:
    """An unfinished record: its events and their payloads."""

    __slots__ = ("_base", "area", "entries", "events", "payloads")

    def __init__(self, sequence: int) -> None:
        self._base = position(sequence, 0)
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        self.entries = 0
        self.area = 0
        """Bytes of all payloads: the offset of the next one."""

    def add(self, event: Event, entries: int = 1) -> Position:
        """Append an event and return the position of its first entry."""
        at = self._base + self.entries
        self.entries += entries
        self.events.append(event)
        return at

    def store(self, payload: bytes) -> int:
        """Append a payload and return its size in bytes."""
        size = len(payload)
        self.payloads.append(payload)
        self.area += size
        return size


class Waiting(NamedTuple):
    """A message in a client's queue."""

    ref: Position
    filter: str
    qos: int
    retain: bool
    size: int


class Message(NamedTuple):
    """A published message."""

    topic: int
    ref: Position
    qos: int
    retain: bool
    size: int


class Client:
    """A client, and the state of its session that later events depend on."""

    __slots__ = (
        "clean",
        "connected",
        "delay",
        "filters",
        "generation",
        "granted",
        "inbound",
        "inflight",
        "known",
        "last_pid",
        "name",
        "patience",
        "publisher_pid",
        "releasing",
        "topics",
        "waiting",
        "will",
        "window",
    )

    def __init__(self, name: str, *, clean: bool) -> None:
        self.name = name
        self.clean = clean
        self.filters: list[tuple[str, int]] = []
        """Filters that it subscribes to."""
        self.topics: list[int] = []
        """Topics that it publishes to."""
        self.will: tuple[int, int, bool] | None = None
        """Topic, QoS, retain."""
        self.window = 100
        self.delay = (1, 3)
        """Minimum and maximum number of ticks until it answers."""
        self.patience = 0.0
        """Mean duration of its connections; 0: unlimited."""
        self.generation = 0
        self.connected = False
        self.publisher_pid = 0
        self.end()

    def end(self) -> None:
        """Forget the session."""
        self.known = False
        self.granted: dict[str, int] = {}
        self.inflight: dict[int, int] = {}
        """QoS by packet identifier."""
        self.releasing: dict[int, int] = {}
        self.inbound: dict[int, Message] = {}
        self.waiting: deque[Waiting] = deque()
        self.last_pid = 0

    @property
    def room(self) -> int:
        """Number of further messages that may be in flight to it."""
        return self.window - len(self.inflight) - len(self.releasing)

    def take_pids(self, count: int) -> list[int]:
        """Return free packet identifiers for deliveries, after the last one used."""
        inflight, releasing = self.inflight, self.releasing
        pid = self.last_pid
        pids: list[int] = []
        while len(pids) < count:
            pid = pid % PACKET_IDS + 1
            if pid not in inflight and pid not in releasing:
                pids.append(pid)
        self.last_pid = pid
        return pids

    def choose_pids(self, count: int) -> list[int]:
        """Return free packet identifiers for the client's publications."""
        inbound = self.inbound
        pid = self.publisher_pid
        pids: list[int] = []
        while len(pids) < count:
            pid = pid % PACKET_IDS + 1
            if pid not in inbound:
                pids.append(pid)
        self.publisher_pid = pid
        return pids


def make_fleet(chance: random.Random, count: int) -> tuple[list[Client], list[str]]:
    """Return ``count`` clients, four in ten of which publish, and all topics."""
    plants = 1 + count // PLANT_CLIENTS
    topics = [
        f"plant/{plant}/line/{line}/{kind}"
        for plant in range(plants)
        for line in range(10)
        for kind in KINDS
    ]
    plain = len(topics)
    publishers = max(1, count * 4 // 10)
    fleet: list[Client] = []
    for number in range(publishers):
        client = Client(f"machine-{number:05}", clean=number % 2 == 0)
        client.topics = list(range(number, plain, publishers))
        client.patience = chance.choice((0.0, 2000.0, 8000.0))
        if number % 3 == 0:
            client.will = (len(topics), number // 3 % 3, number % 2 == 0)
            topics.append(f"gone/{client.name}")
        fleet.append(client)
    fleet += [_subscriber(chance, number, plants) for number in range(count - publishers)]
    return fleet, topics


def _subscriber(chance: random.Random, number: int, plants: int) -> Client:
    plant = chance.randrange(plants)
    granted = chance.choice((1, 1, 1, 2, 2, 0))
    client = Client(f"reader-{number:05}", clean=number % 4 == 0)
    if number == 0:
        client = Client("archive \u5de5\u5834", clean=False)
        client.filters = [(f"plant/{plant}/#", 2), ("gone/+", 1)]
    elif number % 50 == 1:
        client.filters = [(f"plant/{plant}/line/+/{chance.choice(KINDS)}", granted)]
    else:
        line = chance.randrange(10)
        kinds = chance.sample(KINDS, 2)
        client.filters = [(f"plant/{plant}/line/{line}/{kind}", granted) for kind in kinds]
    client.window = chance.choice((10, 50, 200, 1000))
    client.delay = chance.choice(((1, 2), (1, 4), (2, 10)))
    if number % 40 == 7:
        client.delay = (20, 120)
    client.patience = chance.choice((0.0, 500.0, 3000.0))
    return client
