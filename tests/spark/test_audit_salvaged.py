"""Logs that lost any of their records and were salvaged: they fold, verify, and pass an audit.

What the lost records explain is no violation; what a broker did wrong elsewhere still is.
"""

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from harness.plainaudit import audit_plainly, checked_records
from harness.salvages import salvaged
from simulation.chaos import Chaos, Outcome, run_seed

from eventstore.format.node_events import LogCut
from eventstore.format.positions import position
from eventstore.format.records import decode_record
from eventstore.log.log_start import RecordedCut
from projections.audit.log_verifier import LogVerifier
from projections.state.node_state import NodeState

pytestmark = pytest.mark.slow


@cache
def history(seed: int) -> tuple[bytes, ...]:
    """All records of a random run, from the first one on."""
    found: list[bytes] = []

    class Run(Chaos):
        async def run(self) -> Outcome:
            outcome = await super().run()
            found.extend(data for _, data in sorted(self.world.disk.stream.history.items()))
            return outcome

    run_seed(Run, seed)
    return tuple(found)


def salvage(folder: Path, records: Iterable[bytes], lost: set[int]) -> dict[int, bytes]:
    """Return the records of a log that lost some, and was salvaged."""
    return salvaged(folder, dict(enumerate(records, 1)), lost)


def problems(records: dict[int, bytes]) -> list[str]:
    """What the verification of a log and its audit find."""
    found: list[str] = []
    cuts = [
        RecordedCut(position(number, index), 0, event)
        for number, data in records.items()
        for index, event in decode_record(number, data).events()
        if isinstance(event, LogCut)
    ]
    cut = cuts[-1] if cuts else None
    verifier = LogVerifier(lambda at, what: found.append(f"{at} {what}"), None, min(records), cut)
    for sequence, data in records.items():
        verifier.take(sequence, data)
    verifier.end(max(records))
    node = decode_record(1, records[min(records)]).node
    return found + [str(one) for one in audit_plainly(node, checked_records(records))]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))]
)
def test_any_lost_records(seed: int, tmp_path: Path) -> None:
    records = history(seed)
    rng = random.Random(seed)
    for _ in range(5):
        lost: set[int] = set()
        for _ in range(rng.choice((1, 1, 2))):
            first = rng.randrange(1, len(records))
            lost |= set(range(first, min(len(records), first + rng.choice((1, 1, 3, 20))) + 1))
        if len(lost) >= len(records):
            continue
        made = salvage(tmp_path, records, lost)
        begin = min(made)  # what was cut off is not there
        kept = {n: data for n, data in enumerate(records, 1) if n not in lost and n >= begin}
        assert {number: made[number] for number in kept} == kept
        assert problems(made) == [], sorted(lost)
        state = NodeState(begin)
        for number, data in made.items():
            state.apply_record(decode_record(number, data))
        assert not state.unsure
        for name in state.sessions.names():
            session = state.sessions.peek(name)
            assert session is not None
            refs = [ref for held in session.subscriptions.values() for ref in (held.queue or ())]
            assert len(refs) == session.queued
            assert not {ref >> 23 for ref in refs} & lost
            assert not {one.ref >> 20 for one in session.inflight.values()} & lost
            assert session.queued_bytes >= 0
            assert session.queued or not session.queued_bytes
            for held in session.subscriptions.values():
                tables = (session.inflight, session.releasing)
                sent = sum(one.subscription is held for table in tables for one in table.values())
                assert held.outstanding == sent


@pytest.mark.parametrize(
    ("seed", "first", "last"),
    [
        pytest.param(3, 34, 35, id="the opening of a connection"),
        pytest.param(35, 61, 64, id="the opening of another one"),
        pytest.param(3, 34, 54, id="the beginning of a turn"),
        pytest.param(25, 97, 117, id="the beginning of another one"),
        pytest.param(60, 6, 14, id="the permissions"),
    ],
)
def test_lost_records_explain_what_follows(
    seed: int, first: int, last: int, tmp_path: Path
) -> None:
    """Behind a hole, nothing is known that may have changed in it."""
    records = history(seed)
    assert problems(salvage(tmp_path, records, set(range(first, last + 1)))) == []
