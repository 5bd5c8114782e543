"""Logs with the states of the broker's own fold, which rebuilt tables must equal."""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.logs import LogBuilder
from harness.state_rows import Row, state_rows, will_payloads
from simulation.chaos import Chaos, errors_of_the_broker, small_checkpoints
from simulation.loop import simulate
from simulation.shared_clients import Run

from eventstore.format.positions import MAX_INDEX, index_of, position, sequence_of
from eventstore.format.records import Record, decode_record, link_of
from projections.past.replay import head
from projections.state.node_state import NodeState

sys.path.append(str(Path(__file__).parents[1] / "projections"))
from collections.abc import Iterable, Iterator

from harness.nats import Nats
from randomnode import NAMES, STEPS, Node

from eventstore.format.positions import Position


@dataclass
class FoldedLog:
    """A log from its first record on, or cut before another one; read up to a position."""

    log: LogBuilder
    first: int = 1
    until: Position | None = None
    """Up to and with this position."""

    @property
    def node(self) -> str:
        return self.log.node

    @property
    def end(self) -> Position:
        return position(self.log.last, MAX_INDEX) if self.until is None else self.until

    def record(self, sequence: int) -> Record:
        return decode_record(sequence, self.log.records[sequence - 1])

    def records(self) -> Iterator[Record]:
        """As `foldmq replay --at` reads them."""
        for sequence in range(self.first, sequence_of(self.end) + 1):
            record = self.record(sequence)
            if sequence == sequence_of(self.end) and index_of(self.end) != MAX_INDEX:
                record = head(record, index_of(self.end))
            yield record

    def fold(self) -> NodeState:
        node = NodeState(self.first)
        for record in self.records():
            node.apply_record(record)
        return node

    def rows(self) -> dict[str, list[Row]]:
        """What must be rebuilt of it, by job."""
        # Between a checkpoint and the cut before it, payloads are repeated later than this moment.
        whole = map(self.record, range(self.first, self.log.last + 1))
        payloads = dict(pair for record in whole for pair in will_payloads(record))
        return state_rows(self.node, self.fold(), payloads)

    def known_from(self) -> int:
        """The first record behind which the state is known."""
        node = NodeState(self.first)
        for record in self.records():
            node.apply_record(record)
            if not node.partial:
                return record.sequence
        raise AssertionError("its state is never known")

    def store(self, server: Nats) -> None:
        self.log.store(server)
        if self.first > 1:
            self.log.cut(server, self.first)


def moments(logs: Iterable[FoldedLog]) -> str:
    """The option `until` for logs that are read up to different positions."""
    return json.dumps(
        {one.log.stream: f"{sequence_of(one.end)}.{index_of(one.end)}" for one in logs}
    )


# ----------------------------------------------------------------------------- logs


def simulated(seed: int, name: str) -> list[FoldedLog]:
    """What the real broker wrote under random clients and crashes: whole, and as it was cut."""
    records, firsts = simulated_records(seed)
    return [FoldedLog(_built(f"{name}f{first}", records), first) for first in firsts]


def simulated_records(seed: int) -> tuple[list[bytes], list[int]]:
    """The records that the real broker wrote under random clients, and where the log may begin."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = Chaos(seed, errors)
        simulate(chaos.run)
    stream = chaos.world.disk.stream
    records = [data for _, data in sorted(stream.history.items())]
    return records, sorted({1, len(records) - len(chaos.world.disk.records) + 1})


def simulated_shares(seed: int, name: str) -> list[FoldedLog]:
    """What it wrote while clients shared a subscription: whole, and as it was cut."""
    run = Run(seed)
    simulate(run.play)
    stream = run.world.disk.stream
    records = [data for _, data in sorted(stream.history.items())]
    firsts = sorted({1, len(records) - len(run.world.disk.records) + 1})
    return [FoldedLog(_built(f"{name}f{first}", records), first) for first in firsts]


def random_log(seed: int, name: str, steps: int = 120) -> list[FoldedLog]:
    """Plausible events in any order, in small records; whole, and cut where it may be."""
    chance = random.Random(seed)
    node = Node(chance.choice([600, 2000, 1 << 20]))
    node.connect("ann", 1)
    node.connect("bob", 2)
    for _ in range(steps):
        getattr(node, chance.choice(STEPS))(chance.choice(NAMES), chance.randrange(31))
    node.finish()
    records = [one.data for one in node.log.records]
    firsts = sorted({1, *(sequence_of(one.begun) for one in node.live.checkpoints[-1:])})
    return [FoldedLog(_built(f"{name}f{first}", records), first) for first in firsts]


def golden(file: Path, name: str) -> FoldedLog:
    """A log that an earlier version wrote (see tests/eventstore/golden)."""
    return FoldedLog(_built(name, golden_records(file)))


def golden_records(file: Path) -> list[bytes]:
    """The records of a log that an earlier version wrote, as they are."""
    data, records, at = file.read_bytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        records.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return records


def _built(name: str, records: Iterable[bytes]) -> LogBuilder:
    """Return the log of a node of its own: its name is in every record, and so in every link."""
    log = LogBuilder(name)
    links: list[str] = []
    for sequence, data in enumerate(records, 1):
        record = decode_record(sequence, data)
        for event in record.raw_events:
            if event["e"] == "LogCut":
                event["link"] = links[event["first"] - 2]
            elif event["e"] == "LogArchived":
                event["link"] = links[event["through"] - 1]
        log.record(
            *record.raw_events,
            payloads=[record.payload],
            time_ms=record.time_ms,
            part=record.part,
            last=record.last,
            jumps=record.jumps,
        )
        links.append(link_of(log.records[-1]).hex())
    return log
