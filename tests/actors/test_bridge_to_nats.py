"""The bridge from MQTT to NATS: batches of many topics, and release by the gate."""

from collections.abc import Iterator, Sequence

import pytest
from harness.bridgewire import Wire

from actors.bridge import to_nats as module
from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.subscriber_probes import SubscriberProbes
from actors.bridge.to_nats import GatedMessages, OutgoingMessages, ToNats, TopicFlow
from actors.limits.bridge_options import BridgeOptions
from eventstore.log.message_store import StoredMessages
from protocol.nats.mapping import Mapping

MANY = 3000
MAX = 1024 * 1024


class Scanned(list[bytes]):
    """Topics that count how often all of them are scanned."""

    def __init__(self, topics: Sequence[bytes]) -> None:
        super().__init__(topics)
        self.scans = 0

    def __iter__(self) -> Iterator[bytes]:
        self.scans += 1
        return super().__iter__()

    def index(self, *args: object) -> int:
        self.scans += 1
        return super().index(*args)  # type: ignore[arg-type]

    def count(self, value: bytes) -> int:
        self.scans += 1
        return super().count(value)


class Exit:
    """What messages pass on their way to a server."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.replies: list[tuple[str, bytes]] = []
        self.flows = SubscriberProbes(
            self.wire, "n", lambda: 1.0, lambda _after, _do: None, BridgeStats()
        )
        options = BridgeOptions(Mapping())
        self.departures = ToNats(
            self.flows, options, lambda *reply: self.replies.append(reply[:2]), lambda _topic: True
        )

    def send(self, topics: Sequence[bytes], *payloads: bytes) -> int:
        content = StoredMessages(0, topics, list(payloads) or [b"1"] * len(topics), len(topics))
        left_out = self.departures.send(_leaving(content), MAX)
        self.flows.flush()
        return left_out


def _leaving(content: StoredMessages) -> OutgoingMessages:
    return OutgoingMessages(("c",), "", 0, retain=False, content=content, size=content.size)


@pytest.fixture
def outside() -> Exit:
    return Exit()


def test_a_batch_of_many_topics_is_scanned_a_few_times(outside: Exit) -> None:
    topics = Scanned([b"t%d" % (at % MANY) for at in range(2 * MANY)])
    outside.send(topics)  # each a probe
    outside.wire.answer()
    outside.send(topics)  # all open
    assert len(outside.wire.subjects) == 4 * MANY
    assert outside.flows.held == 0
    assert topics.scans < 10


def test_losses_on_many_topics_are_counted_in_a_few_scans(outside: Exit) -> None:
    topics = Scanned([b"t%d" % (at % MANY) for at in range(2 * MANY)])
    outside.send(topics)
    outside.send(topics)
    assert outside.flows.lose() == 4 * MANY
    assert topics.scans < 10


def test_many_answers_to_requests_take_a_few_looks(outside: Exit) -> None:
    tokens = [f"t{at}" for at in range(MANY)]
    topics = Scanned([f"$nats/reply/{token}".encode() for token in tokens])
    outside.send(topics, *(token.encode() for token in tokens))
    assert outside.replies == [(token, token.encode()) for token in tokens]
    assert topics.scans < 10


@pytest.mark.plain
def test_waiting_flows_are_not_scanned_for_each_new_one(
    outside: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def busy(flow: TopicFlow) -> bool:
        nonlocal looks
        looks += 1
        return flow.covered is not None

    monkeypatch.setattr(module, "_MAX_FLOWS", 100)
    monkeypatch.setattr(TopicFlow, "busy", property(busy))
    few = Exit()
    for at in range(MANY):  # the server stands still
        few.send([b"t%d" % at])
    assert 100 <= looks <= 2 * MANY
    few.wire.answer()
    few.flows.lose()
    looks = 0
    for at in range(2 * MANY):
        few.send([b"$SYS/%d" % at])  # of no concern to NATS: nothing waits
    assert looks <= 2 * MANY


def test_topics_leave_in_the_order_in_which_they_come(outside: Exit) -> None:
    topics = [b"z", b"a", b"m", b"z", b"b", b"a"]
    outside.send(topics)
    outside.wire.answer()
    assert outside.wire.subjects == ["z", "a", "m", "b", "z", "a"]


def test_a_failure_takes_nothing_from_the_others() -> None:
    passed: list[bytes] = []

    def release(leaving: OutgoingMessages) -> None:
        topic = leaving.content.topics[0]
        if topic.startswith(b"bad"):
            raise ValueError(topic.decode())
        passed.append(topic)

    gated = GatedMessages(release)
    for topic in (b"bad1", b"1", b"bad2", b"2", b"3"):
        gated.hold_back(_leaving(StoredMessages(0, [topic], [b""], 7)))
    assert gated.size == 35
    with pytest.raises(ValueError, match="bad1"):
        gated.write(b"....")
    assert passed == [b"1", b"2"]
    assert gated.size == 7
    gated.write(b".")
    assert passed == [b"1", b"2", b"3"]
    assert gated.size == 0


def test_long_client_identifiers_leave_room_for_messages(outside: Exit) -> None:
    content = StoredMessages(0, [b"a", b"a"], [bytes(MAX - 4096), bytes(MAX)], 2 * MAX - 4096)
    leaving = _leaving(content)._replace(publishers=("\u00e9" * 30_000,))
    assert outside.departures.send(leaving, MAX) == 1
    outside.flows.flush()
    assert outside.wire.subjects == ["a"]
    assert len(outside.wire.data) < MAX
