"""Clients of the logs that log_generator.py writes, and the state of each."""

import random
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from eventstore.format import Event, Position, position

PACKET_IDS = 65_535
PLANT_CLIENTS = 100
"""So many clients a plant has, and it has ten lines."""
KINDS = ("temperature", "pressure", "speed", "state", "energy", "torque", "count", "alarm")
RETAINED_KIND = KINDS.index("state")


@dataclass(frozen=True)
class Flavour:
    """How a log is made up."""

    messages: tuple[int, int]
    """Messages that a publisher sends at once, least and most."""
    record: tuple[int, int]
    """Entries of a record."""
    together: int
    """Entries of one event at most."""
    crashes: int = 0
    """How often the broker is killed and started again."""
    operators: bool = False
    """An operator kicks clients and clears retained messages."""


FLAVOURS = {
    "single": Flavour((1, 1), (100, 500), 1),
    "bulk": Flavour((20, 200), (2_000, 12_000), 1_000),
    "mixed": Flavour((1, 40), (100, 3_000), 100, crashes=2, operators=True),
}


class Draft:
    """A record in the making: its events and the payloads that they brought."""

    __slots__ = ("_base", "area", "entries", "events", "payloads")

    def __init__(self, sequence: int) -> None:
        self._base = position(sequence, 0)
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        self.entries = 0
        self.area = 0
        """Bytes of all payloads: the offset of the next one."""

    def add(self, event: Event, entries: int = 1) -> Position:
        """Append an event and give the position of its first entry."""
        at = self._base + self.entries
        self.entries += entries
        self.events.append(event)
        return at

    def store(self, payload: bytes) -> int:
        """Append a payload and give its bytes."""
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
    """What is known of a message that was published."""

    topic: int
    ref: Position
    qos: int
    retain: bool
    size: int


class Client:
    """A client and, of its session, what must be known to go on without breaking a rule."""

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
        """What it subscribes to."""
        self.topics: list[int] = []
        """What it publishes to."""
        self.will: tuple[int, int, bool] | None = None
        """Topic, QoS, retain."""
        self.window = 100
        self.delay = (1, 3)
        """Ticks until it answers, least and most."""
        self.patience = 0.0
        """For how long it stays connected, on average; 0: for ever."""
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
        """How many more messages may be on their way to it."""
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
    """Return ``count`` clients, of which four in ten publish, and all topics."""
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
