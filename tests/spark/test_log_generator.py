"""The generator of logs: its output is a log that a broker could have written."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness.broker import environment
from harness.nats import PASSWORD, USER, Nats
from harness.plainaudit import violations

from bench.logs.log_generator import Plan, Written, records
from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import entries
from eventstore.format.records import ChainChecker, Record, decode_record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.nats.log_stream import check_stream
from projections.state.node_state import NodeState

ROOT = Path(__file__).parents[2]
GENERATOR = [sys.executable, "-m", "bench.logs.log_generator"]


FLAVOURS = ("single", "bulk", "mixed")
SIZES = {"single": 6_000, "bulk": 30_000, "mixed": 6_000}
LARGE = {"single": 100_000, "bulk": 200_000, "mixed": 160_000}
"""Entries of logs that have some of everything."""


def generated(
    flavour: str, entries: int, seed: int = 1, **given: Any
) -> tuple[list[Record], Written]:
    written = Written()
    plan = Plan(entries, flavour, seed, **given)
    made = [decode_record(at, data) for at, data in enumerate(records(plan, written), 1)]
    return made, written


@cache
def large(flavour: str) -> tuple[list[Record], Written]:
    return generated(flavour, LARGE[flavour])


def events(made: list[Record]) -> list[Any]:
    """The events of the turns that were finished."""
    turns = TurnAssembler()
    return [
        event for record in made for part in turns.take(record)[1] for _, event in part.events()
    ]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_no_guarantee_is_violated(flavour: str) -> None:
    made, _ = generated(flavour, SIZES[flavour], clients=40)
    assert not violations(made)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_broker_can_fold_it(flavour: str) -> None:
    made, written = large(flavour)
    checker, node = ChainChecker(), NodeState()
    for record in made:
        checker.check(record)
        node.apply_record(record)
    assert node.applied == written.records == len(made)
    assert node.entries == written.entries
    assert LARGE[flavour] <= written.entries < 1.15 * LARGE[flavour]
    assert written.link == made[-1].link.hex()
    assert written.ends_ms == made[-1].time_ms
    assert len(node.sessions) > 500
    assert len(node.retained) > 20
    assert any(state.queued for state in node.sessions.live.values())
    assert any(state.releasing for state in node.sessions.live.values())


def test_flavours_differ_in_the_entries_of_an_event() -> None:
    def sizes(flavour: str) -> list[int]:
        return [entries(event) for event in events(generated(flavour, 20_000)[0])]

    assert set(sizes("single")) == {1}
    assert max(sizes("bulk")) > 100
    mixed = sizes("mixed")
    assert 1.5 < sum(mixed) / len(mixed) < 20


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_event_type_occurs(flavour: str) -> None:
    found = events(large(flavour)[0])
    kinds = Counter(type(event).__name__ for event in found)
    wanted = {
        "BrokerStarted", "SessionOpened", "SessionTakenOver", "SessionClosed", "SessionExpired",
        "Subscribed", "Unsubscribed", "MessagePublished", "Delivered", "Queued", "Redelivered",
        "Acked", "Received", "Completed", "Released", "WillArmed", "WillFired", "WillCancelled",
        "MessageDropped", "LimitsApplied",
    }  # fmt: skip
    if flavour == "mixed":
        wanted |= {"OperatorActed", "RetainedCleared"}
        assert kinds["BrokerStarted"] == 3
    assert kinds.keys() == wanted
    assert {event.qos for event in found if type(event).__name__ == "MessagePublished"} == {0, 1, 2}
    assert {event.retain for event in found if type(event).__name__ == "Delivered"} == {False, True}


def test_a_crash_leaves_an_unfinished_turn() -> None:
    made, written = generated("mixed", 60_000)
    void = [
        before.sequence
        for before, after in itertools.pairwise(made)
        if not before.last and after.part == 0
    ]
    assert len(void) == 2
    assert any(record.part for record in made)
    assert sum(entries(event) for event in events(made)) == written.entries


def test_the_same_seed_gives_the_same_log_and_another_one_another() -> None:
    first = generated("mixed", 6000)[1].link
    assert generated("mixed", 6000)[1].link == first
    assert generated("mixed", 6000, seed=2)[1].link != first


def test_the_rate_is_that_of_the_logs_time() -> None:
    made, written = generated("single", 20_000, rate=1000)
    assert made[-1].time_ms - made[0].time_ms == pytest.approx(written.entries, rel=0.02)


def run(server: Nats, *words: str) -> subprocess.CompletedProcess[str]:
    access = ("--user", USER, "--password", PASSWORD)
    return subprocess.run(
        [*GENERATOR, "--nats", server.url, *access, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )


def test_the_stream_is_made_as_a_broker_makes_it(nats: Nats) -> None:
    words = ("--entries", "5000", "--flavour", "mixed", "--node", "generated", "--clients", "50")
    done = run(nats, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    info = nats.api("STREAM.INFO.FOLDMQ_LOG_generated")
    check_stream(info["config"], subjects=["foldmq.log.generated"])
    assert info["state"]["last_seq"] == told["records"]
    _, expected = generated("mixed", 5000, clients=50, node="generated")
    assert told["link"] == expected.link
    again = run(nats, *words)
    assert again.returncode == 1
    assert again.stderr.startswith("log_generator: stream FOLDMQ_LOG_generated holds ")


def test_a_missing_server_is_one_line() -> None:
    done = subprocess.run(
        [*GENERATOR, "--nats", "nats://127.0.0.1:1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("log_generator: cannot connect to NATS at nats://127.0.0.1:1")
    assert done.stderr.count("\n") == 1


def test_a_log_with_a_record_left_out_is_no_log() -> None:
    """What these tests rest on finds what is wrong."""
    made, _ = generated("single", 12_000, clients=40)
    del made[len(made) // 2].raw_events[-20:]
    assert violations(made)
    checker = ChainChecker()
    for record in made[:5]:
        checker.check(record)
    with pytest.raises(CorruptLog, match="is missing"):
        checker.check(made[6])


def test_asking_for_nothing_is_refused(nats: Nats) -> None:
    done = run(nats, "--entries", "0")
    assert done.returncode == 2
    assert "at least 1 entry" in done.stderr
