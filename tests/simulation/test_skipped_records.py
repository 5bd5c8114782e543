"""Records of another log that concern no subscription wake nobody, and nothing is missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import packets as p
from hypothesis import given
from hypothesis import strategies as st

from actors.exchange import log_follower
from actors.exchange.exchange import LogExchange
from actors.exchange.skipped_records import (
    HELD_RECORDS,
    HELD_SECONDS,
    Skipped,
    decode_push,
    encode_push,
)
from simulation.partitions import PartitionWorld, SimExchangeLink, name_in
from simulation.two_logs import two
from simulation.world import runs

LINKS = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(1, (1 << 64) - 1)
SKIPPED = st.builds(
    Skipped,
    NUMBERS,
    NUMBERS,
    LINKS,
    LINKS,
    st.lists(st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)),
    st.booleans(),
    NUMBERS,
)


@given(st.none() | SKIPPED, NUMBERS, st.binary())
def test_a_push_is_read_as_it_was_written(
    skipped: Skipped | None, sequence: int, record: bytes
) -> None:
    data = encode_push(skipped, sequence, record)
    assert decode_push(data) == (skipped, sequence, record)
    for size in (0, 10):
        with pytest.raises(ValueError, match=r"."):
            decode_push(data[:size])


def _exchange(world: PartitionWorld) -> LogExchange:
    exchange = world.broker.exchange
    assert exchange is not None
    return exchange


def count_messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each message with records, or with a position, is added."""
    messages: list[str] = []
    deliver = SimExchangeLink._deliver

    def counted(other: PartitionWorld, what: str, content: tuple[Any, ...]) -> None:
        if what in ("heard", "pushed"):
            messages.append(f"{other.name} {what}")
        deliver(other, what, content)

    monkeypatch.setattr(SimExchangeLink, "_deliver", staticmethod(counted))
    return messages


@runs(two)
async def test_messages_that_no_other_log_needs_wake_no_other_broker(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = count_messages(monkeypatch)
    sender = await here.connect(name_in([here, there], 0))
    sender.send(p.publish("a", b"", 1, 1))
    await here.go(1)
    messages.clear()
    for number in range(100):
        sender.send(p.publish("a", b"%d" % number, 1, number + 2))
        await here.go(0.02)
    assert len([each for each in messages if each.startswith(there.name)]) <= 30
    await here.go(1)
    last = here.broker.node.journal.durable
    assert _exchange(there).last_taken(here.name) == last


@pytest.mark.parametrize("what", ["begun", "lost", "begun and lost"])
@runs(two)
async def test_topics_are_reported_again_if_the_publishers_broker_does_not_know_them(
    here: PartitionWorld, there: PartitionWorld, *, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = count_messages(monkeypatch)
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    here.lost = there.lost = float(what == "lost")
    sender.send(p.publish("a", b"", 1, 1))
    await here.go(6)
    here.lost = there.lost = 0.0
    if what != "lost":
        there.lost = float(what != "begun")
        await here.crash()
        await here.start()
        await here.go(2)
        there.lost = 0.0
        sender = await here.connect(name_in(worlds, 0))
    await here.go(6)
    for number in range(100):
        sender.send(p.publish("a", b"%d" % number, 1, number + 2))
        await here.go(0.02)
        if not number:
            await here.go(1)
            messages.clear()
    assert len([each for each in messages if each.startswith(there.name)]) <= 30


@pytest.mark.parametrize("lost", [False, True])
def test_a_new_subscription_gets_what_its_log_did_not_want_before(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the report about it is lost: a tenth of a second later."""
    report = SimExchangeLink.report_topics
    reports: list[bytes] = []

    def sometimes(self: SimExchangeLink, to: str, topics: bytes) -> None:
        reports.append(topics)
        if not (lost and topics.startswith(b'[["')):
            report(self, to, topics)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        worlds = [here, there]
        sender = await here.connect(name_in(worlds, 0))
        for number in range(20):
            sender.send(p.publish(f"a/{number % 2}", b"", 1, number + 1))
            await here.go(0.05)
        await here.go(2 * HELD_SECONDS)
        reader = await there.connect(name_in(worlds, 1), filters=[("a/+", 1), ("a/1", 1)])
        reader.take()
        for number in range(20):
            sender.send(p.publish("a/1", b"%d" % number, 1, number + 30))
            await here.go(0.02)
        await here.go(1 if lost else 0.1)
        assert _payloads(reader) == [b"%d" % number for number in range(20)]
        assert any(each.startswith(b"[[],[") for each in reports)
        assert any(each.startswith(b'[["') for each in reports)

    monkeypatch.setattr(SimExchangeLink, "report_topics", sometimes)
    two(scenario)


def _payloads(reader: Any) -> list[bytes]:
    return reader.payloads()


@runs(two)
async def test_topics_of_skipped_records_that_do_not_fit_a_message_delay_nothing(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    """In JSON these have six times their size."""
    worlds = [here, there]
    topics = ["\x01" * 9000 + str(number) for number in range(26)]
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    sender = await here.connect(name_in(worlds, 0))
    for number, topic in enumerate(topics):
        sender.send(p.publish(topic, b"", 1, number + 1))
        await here.go(0.02)
    await here.go(6)
    for number, topic in enumerate(topics):
        sender.send(p.publish(topic, b"", 1, number + 30))
        await here.go(0.0015)
    sender.send(p.publish("a", b"x", 1, 60))
    await here.go(0.2)
    assert _payloads(reader) == [b"x"]


@pytest.mark.parametrize("count", [3, HELD_RECORDS + 100])
@runs(two)
async def test_what_could_not_be_sent_is_sent_later(
    here: PartitionWorld, there: PartitionWorld, *, count: int
) -> None:
    sender = await here.connect(name_in([here, there], 0))
    sender.send(p.publish("a", b"", 1, 1))
    await here.go(6)
    pushes = _exchange(here)._pushes
    assert pushes is not None
    here._links[-1].largest = 0
    for number in range(count):
        sender.send(p.publish("a", b"%d" % number, 1, number + 2))
        await here.go(0.005)
        assert len(pushes._held) <= HELD_RECORDS
    await here.go(0.2)
    del here._links[-1].largest
    await here.go(0.15)
    assert _exchange(there).last_taken(here.name) == here.broker.node.journal.durable


@runs(two)
async def test_skipped_records_without_messages_need_bounded_memory(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    follower, link = next(iter(_exchange(there)._followers.values())), bytes(32)
    for number in range(100_000, 110_000):
        skipped = Skipped(number, number, link, link, [], False, 0)
        follower._keep(number, number, skipped)
        assert len(follower._pushed) < 5000


@runs(two)
async def test_long_topics_that_no_other_log_needs_need_bounded_memory(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    sender = await here.connect(name_in([here, there], 0))
    pushes = _exchange(here)._pushes
    assert pushes is not None
    sets = [pushes.unwanted[there.name], _exchange(there).unwanted._topics[here.name]]
    most = 0
    for number in range(100):
        sender.send(p.publish(f"{number}" + "x" * 60_000, b"", 1, number + 1))
        await here.go(0.15)
        kept = [sum(map(len, each.topics)) for each in sets]
        assert max(kept) <= 4 << 20
        assert kept == [each._bytes for each in sets]
        most = max(most, *kept)
    assert most > 2 << 20


@runs(two)
async def test_messages_of_qos_2_are_not_read_again_when_they_are_released(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    sender = await here.connect(name_in(worlds, 0))
    await here.go(6)
    log = there._readers[-1]
    read_some, reads = log.read_some, 0

    async def counted(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read_some(*args)

    log.read_some = counted  # type: ignore[method-assign]
    for number in range(20):
        sender.send(p.publish("a", b"%d" % number, 2, number + 1))
        await here.go(0.02)
        sender.send(p.pubrel(number + 1))
        await here.go(0.02)
    await here.go(1)
    assert _payloads(reader) == [b"%d" % number for number in range(20)]
    assert not reads


def _hide_from(world: PartitionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a broker be of an earlier version, without reports of topics and what follows them."""
    deliver, send = SimExchangeLink._deliver, SimExchangeLink._send

    def as_before(other: PartitionWorld, what: str, content: tuple[Any, ...]) -> None:
        if other is not world or what not in ("pushed", "reported_topics"):
            deliver(other, what, content)

    def silent(self: SimExchangeLink, what: str, *content: Any, to: str = "") -> None:
        if self._world is not world or what not in ("pushed", "reported_topics"):
            send(self, what, *content, to=to)

    monkeypatch.setattr(SimExchangeLink, "_deliver", staticmethod(as_before))
    monkeypatch.setattr(SimExchangeLink, "_send", silent)


@pytest.mark.parametrize("later", [False, True])
@runs(two)
async def test_a_broker_of_an_earlier_version_hears_of_all_records_at_once(
    here: PartitionWorld, there: PartitionWorld, *, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a newer one, which had reported topics, led its log before."""
    worlds = [here, there]
    if not later:
        await there.crash()
        await here.crash()
        _hide_from(there, monkeypatch)
        await here.start()
        await there.start()
    local = await here.connect(name_in(worlds, 0, "local"), filters=[("a", 1)])
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    await here.go(6)
    if later:
        _hide_from(there, monkeypatch)
        await here.go(12)
    payloads = []
    for number in range(30):
        sender.send(p.publish("a", b"%d" % number, 1, number + 1))
        for _ in range(5):
            await here.go(0.02)
            for packet in local.take():
                if isinstance(packet, p.Publish):  # a record without messages
                    local.send(p.puback(packet.packet_id))
        payloads += _payloads(reader)
        assert payloads == [b"%d" % each for each in range(number + 1)]


@runs(two)
async def test_a_retained_message_is_taken_at_once_although_nobody_wants_its_topic(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    for number in range(20):
        sender.send(p.publish("a", b"", 1, number + 1))
        await here.go(0.05)
    sender.send(p.publish("a", b"kept", 1, 30, retain=True))
    await here.go(0.1)
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    assert _payloads(reader) == [b"kept"]


@runs(two)
async def test_messages_of_a_killed_broker_that_nobody_was_sent_are_taken_when_it_is_back(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    for number in range(20):
        sender.send(p.publish("a", b"", 1, number + 1))
        await here.go(0.05)
    await here.go(2 * HELD_SECONDS)
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    sender.send(p.publish("a", b"last", 1, 30))
    await here.go(0.0015)
    await here.crash()
    await here.start()
    await here.go(2)
    expected = [b"last"] if b"last" in _published(here) else []
    assert _payloads(reader) == expected


def _published(world: PartitionWorld) -> bytes:
    return b"".join(data for _, data in sorted(world.disk.stream.history.items()))


@runs(two)
async def test_an_idle_log_that_reports_its_end_is_not_asked_for_it(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    await here.go(3 * log_follower._QUIET)
    reader = there._readers[-1]
    tail, calls = reader.tail, 0

    async def counted() -> Any:
        nonlocal calls
        calls += 1
        return await tail()

    reader.tail = counted  # type: ignore[method-assign]
    await here.go(60)
    assert not calls
    await here.crash()
    await asyncio.sleep(3 * log_follower._QUIET)
    assert calls
    await here.start()
