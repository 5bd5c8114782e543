"""The bridge from MQTT to NATS: sent messages, awaited answers, and unwanted messages.

The model of a server processes its input one command at a time, and its answers are read one at a
time, so that subscriptions begin and end at every point in between.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence

import pytest
from harness.examples import examples
from hypothesis import given
from hypothesis import strategies as st

from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.subscriber_probes import SubscriberProbes
from actors.bridge.to_nats import OutgoingMessages, TopicFlow
from eventstore.log.message_store import StoredMessages
from protocol.nats.headers import parse_headers

INBOX = b"_INBOX.us."
NODE = "n1"


class Server:
    """A NATS server and the connection to it."""

    def __init__(self) -> None:
        self.inbox = INBOX
        self.now = 100.0
        self.up = True
        self.wanted: set[bytes] = set()
        """Subjects with a subscriber."""
        self.delivered: list[tuple[bytes, bytes, bytes]] = []
        """(subject, headers, payload) of received messages."""
        self.ignored = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.writes: list[int] = []
        """Bytes of each write."""
        self._written: deque[bytes | Callable[[], None]] = deque()
        self._answers: deque[Callable[[], None]] = deque()
        self.stats = BridgeStats()
        names = itertools.count(1)
        self.flows = SubscriberProbes(
            self, NODE, lambda: self.now, self._later, self.stats, lambda: f"t{next(names)}"
        )
        self._known: dict[str, TopicFlow] = {}

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, what))

    # what the flows call

    def write(self, data: list[bytes]) -> bool:
        if self.up:
            joined = b"".join(data)
            self.writes.append(len(joined))
            self._written.extend(_commands(joined))
        return self.up

    def fence(self, done: Callable[[], None]) -> None:
        self._written.append(done)

    # what happens

    def publish(self, topics: Sequence[str], payloads: Sequence[bytes], **about: object) -> None:
        """Publish messages together."""
        raw = [topic.encode() for topic in topics]
        content = StoredMessages(0, raw, list(payloads), sum(map(len, payloads)))
        fields: dict[str, object] = {"publishers": ("c",), "qos": 0, "retain": False, **about}
        leaving = OutgoingMessages(prefix="", content=content, size=content.size, **fields)  # type: ignore[arg-type]
        if len(set(topics)) > 1:
            leaving, _ = leaving.split()
        for topic in dict.fromkeys(topics):
            self.flows.send(self.flow(topic), leaving)
        self.flows.flush()

    def flow(self, topic: str) -> TopicFlow:
        return self._known.setdefault(topic, TopicFlow(topic, topic.encode(), topic.encode()))

    def process(self) -> bool:
        """Have the server process one command; False: there is none."""
        if not self._written:
            return False
        command = self._written.popleft()
        if not isinstance(command, bytes):
            self._answers.append(command)
            return True
        line, _, rest = command.partition(b"\r\n")
        _, subject, *reply, size, _ = line.split(b" ")
        headers, payload = rest[: int(size)], rest[int(size) : -2]
        if subject in self.wanted:
            self.delivered.append((subject, headers, payload))
        else:
            self.ignored += 1
            if reply:
                self._answers.append(lambda: self.flows.answered(reply[0], b"NATS/1.0 503\r\n\r\n"))
        return True

    def read(self) -> bool:
        """Have one answer read; False: there is none."""
        if not self._answers:
            return False
        self._answers.popleft()()
        self.flows.flush()
        return True

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        due = [what for at, what in self.timers if at <= self.now]
        self.timers = [(at, what) for at, what in self.timers if at > self.now]
        for what in due:
            what()

    def settle(self) -> None:
        """Let everything happen that is to happen."""
        for _ in range(50):
            while self.process() or self.read():
                pass
            self.wait(0.01)

    def got(self, topic: str) -> list[bytes]:
        return [payload for subject, _, payload in self.delivered if subject == topic.encode()]


def _commands(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end].rsplit(b" ", 1)[1])
        stop = end + 2 + size + 2
        assert data[stop - 2 : stop] == b"\r\n"
        found.append(data[at:stop])
        at = stop
    return found


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_subject_without_subscribers_costs_one_message(server: Server) -> None:
    for number in range(100):
        server.publish(["a"], [b"%d" % number])
    server.settle()
    assert (server.delivered, server.flows.held) == ([], 0)
    assert server.ignored == 2  # the first, and one for all that waited for its answer
    assert server.stats.probes == 2
    assert server.stats.sent == 0


def test_a_subject_without_subscribers_for_long_is_probed_less(server: Server) -> None:
    for number in range(200):
        server.publish(["a"], [b"%d" % number])
        while server.process() or server.read():
            pass
        server.wait(0.01)
    assert server.stats.probes < 60
    server.wanted.add(b"a")
    server.publish(["a"], [b"first"])
    server.settle()
    assert server.got("a")[-1] == b"first"
    server.publish(["a"], [b"next"])
    server.process()
    assert server.got("a")[-1] == b"next"
    assert server.flows.held == 0


def test_many_bytes_for_a_subject_without_subscribers_do_not_wait_long(server: Server) -> None:
    for _ in range(20):
        server.publish(["a"], [b""])
        server.settle()
    for _ in range(40):
        server.publish(["a"], [bytes(2048)])
        while server.process() or server.read():
            pass
    assert server.flows.held < 40 * 2048


def test_messages_of_several_clients_carry_their_names(server: Server) -> None:
    server.wanted |= {b"a", b"b"}
    server.publish(
        ["a", "b", "a", "a"],
        [b"0", b"1", b"2", b"3"],
        qos=1,
        refs=range(70, 74),
        since=70,
        through=73,
        publishers=("x", "y"),
        publisher_of=[0, 1, 1, 1],
    )
    server.settle()
    clients = {
        payload: parse_headers(head).get("Foldmq-Client") for _, head, payload in server.delivered
    }
    assert clients == {b"0": "x", b"1": "y", b"2": "y", b"3": "y"}


def test_a_subscriber_gets_all_messages_in_order(server: Server) -> None:
    server.wanted.add(b"a")
    for number in range(10):
        server.publish(["a"] * 3, [b"%d.%d" % (number, at) for at in range(3)])
        server.process()
    server.settle()
    assert server.got("a") == [b"%d.%d" % (number, at) for number in range(10) for at in range(3)]
    assert server.flows.held == 0
    assert server.stats.sent == 30


def test_a_subscriber_during_a_probe_gets_later_messages(server: Server) -> None:
    server.publish(["a"], [b"before"])
    server.process()  # there was no subscriber
    server.wanted.add(b"a")
    server.publish(["a"], [b"1"])
    server.read()
    server.publish(["a"], [b"2"])
    server.settle()
    assert server.got("a") == [b"1", b"2"]


def test_a_subscriber_that_leaves_costs_at_most_a_second(server: Server) -> None:
    server.wanted.add(b"a")
    server.publish(["a"], [b"1"])
    server.settle()
    server.wanted.clear()
    server.wait(2.0)
    for number in range(100):
        server.publish(["a"], [b"%d" % number])
        server.settle()
    assert server.got("a") == [b"1"]
    assert server.flows.held == 0
    server.wanted.add(b"a")
    server.publish(["a"], [b"2"])
    server.settle()
    assert server.got("a") == [b"1", b"2"]


@pytest.mark.parametrize(("messages", "probes"), [(10, 10), (210, 50), (1_000, 81)])
def test_a_subject_without_subscribers_is_probed_more_and_more_rarely(
    server: Server, messages: int, probes: int
) -> None:
    for number in range(messages):  # one each 10 ms
        server.publish(["a"], [b"%d" % number])
        server.wait(0.01)
        while server.process() or server.read():
            pass
    assert server.stats.probes == pytest.approx(probes, abs=2)
    server.wanted.add(b"a")
    server.publish(["a"], [b"last"])
    server.wait(0.3)
    server.settle()
    assert server.got("a")[-1] == b"last"
    assert server.flows.held == 0


def test_an_answer_that_is_late_is_not_for_a_later_question(server: Server) -> None:
    server.wanted.add(b"a")
    server.publish(["a"], [b"0"])
    server.settle()
    server.wanted.clear()
    for number in (1, 2):  # the server stands still for longer than a subject is open
        server.wait(2.0)
        server.publish(["a"], [b"%d" % number])
    while server.process():
        pass
    assert server.read()  # 1 had no subscriber
    server.publish(["a"], [b"3"])
    server.publish(["a"], [b"4"])
    server.wait(0.01)  # 3 is a probe, which covers 4
    server.wanted.add(b"a")
    while server.read():  # 2 had no subscriber
        pass
    server.settle()
    assert server.got("a") == [b"0", b"3", b"4"]


def test_batches_of_several_topics_keep_positions(server: Server) -> None:
    server.wanted |= {b"a", b"b"}
    topics = ["a", "b", "a", "b", "b"]
    payloads = [b"%d" % at for at in range(5)]
    server.publish(topics, payloads, qos=1, refs=range(70, 75), since=70, through=74)
    server.settle()
    assert (server.got("a"), server.got("b")) == ([b"0", b"2"], [b"1", b"3", b"4"])
    ids = {payload: parse_headers(head).get("Nats-Msg-Id") for _, head, payload in server.delivered}
    assert ids == {b"%d" % at: f"{NODE}-{70 + at}" for at in range(5)}
    assert server.flows.held == 0


def test_waiting_messages_are_not_settled(server: Server) -> None:
    server.wanted.add(b"a")
    server.publish(["a"], [b"1"], qos=1, refs=[7], since=7, through=7)
    server.publish(["a"], [b"2"], qos=1, refs=[9], since=9, through=9)
    assert server.flows.oldest() == 7
    server.settle()
    assert server.flows.oldest() is None


def test_lost_messages_are_counted_unless_they_are_in_the_log(
    server: Server,
) -> None:
    server.publish(["a", "a", "b"], [b"1", b"2", b"3"])
    server.publish(["a"], [b"4"], qos=1, refs=[7], since=7, through=7)
    server.publish(["a"], [b"5"])
    server.up = False
    assert server.flows.lose() == 4
    assert server.flows.held == 0
    assert server.flows.oldest() is None
    server.up = True
    server.wanted.add(b"a")
    server.publish(["a"], [b"6"])
    server.settle()
    assert server.got("a")[-1] == b"6"


def test_answers_that_are_no_answers_are_passed_over(server: Server) -> None:
    server.publish(["a"], [b"1"])
    for subject in (
        INBOX,
        INBOX + b"1",
        INBOX + b"t2",
        INBOX + b"99",
        INBOX + "\u0661".encode(),
        b"",
    ):
        server.flows.answered(subject, b"NATS/1.0 503\r\n\r\n")
    server.flows.answered(INBOX + b"t1", b"NATS/1.0\r\nfrom: somebody\r\n\r\n")
    server.wanted.add(b"a")
    server.publish(["a"], [b"2"])
    server.settle()
    assert server.got("a") == [b"1", b"2"]


def test_an_answer_is_taken_once(server: Server) -> None:
    server.publish(["a"], [b"1"])
    for _ in range(2):
        server.flows.answered(INBOX + b"t1", b"NATS/1.0 503\r\n\r\n")
    assert (server.flows.held, server.stats.sent) == (0, 0)


def test_names_of_probes_cannot_be_guessed(server: Server) -> None:
    written: list[bytes] = []

    class Wire:
        inbox = INBOX

        def write(self, data: list[bytes]) -> bool:
            written.extend(_commands(b"".join(data)))
            return True

        def fence(self, done: Callable[[], None]) -> None:
            """Never answer."""

    flows = SubscriberProbes(Wire(), NODE, lambda: 1.0, lambda _seconds, _what: None, server.stats)
    content = StoredMessages(0, [b"a"], [b""], 0)
    for topic in ("a", "b"):
        flow = TopicFlow(topic, topic.encode(), topic.encode())
        flows.send(flow, OutgoingMessages("c", "", 0, retain=False, content=content, size=0))
    flows.flush()
    names = [command.split(b" ")[2].removeprefix(INBOX) for command in written]
    assert len(set(names)) == 2
    for name in names:
        assert len(bytes.fromhex(name.decode())) == 8


def test_waiting_bytes_include_headers(server: Server) -> None:
    server.publish(["a"], [b""])
    assert server.flows.held >= 100
    before = server.flows.held
    server.publish(["a"] * 50 + ["b" * 1000] * 50, [b""] * 100)
    added = server.flows.held - before
    assert added >= 100 * 100 + 50 * 2 * 1000  # as subject, and in the headers
    server.publish(["a"], [bytes(5000)])
    assert server.flows.held - before - added >= 5100
    server.settle()
    assert server.flows.held == 0


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_counted_size_is_close_to_the_sent_size(
    server: Server, qos: int, *, several: bool
) -> None:
    server.wanted |= {b"hall/lamp", b"x"}
    topics = ["hall/lamp"] * 30 + (["x"] * 30 if several else [])
    refs = range(10**12, 10**12 + len(topics)) if qos else ()
    server.publish(topics, [bytes(40)] * len(topics), qos=qos, refs=refs)
    held = server.flows.held
    server.settle()
    assert sum(server.writes) / 2 < held < sum(server.writes) * 2


@pytest.mark.parametrize("qos", [0, 1])
def test_much_is_handed_over_in_parts(server: Server, qos: int) -> None:
    server.wanted.add(b"a")
    server.publish(["a"], [b"first"])
    server.settle()
    payloads = [b"%d" % at + bytes(10_000) for at in range(500)]
    refs = range(70, 570) if qos else ()
    del server.writes[:]
    server.publish(["a"] * 500, payloads, qos=qos, refs=refs)
    assert len(server.writes) >= 4
    assert max(server.writes) < 1024 * 1024 + 20_000
    server.settle()
    assert server.got("a")[1:] == payloads


def test_a_connection_that_ends_between_the_parts_is_reported(server: Server) -> None:
    server.wanted.add(b"a")
    server.publish(["a"], [b"first"])
    server.settle()
    server.up = False
    content = StoredMessages(0, [b"a"] * 500, [bytes(10_000)] * 500, 5_000_000)
    leaving = OutgoingMessages("c", "", 0, retain=False, content=content, size=content.size)
    server.flows.send(server.flow("a"), leaving)
    server.up = True  # another one is there already: it is not to get the rest
    assert not server.flows.flush()
    server.flows.lose()
    server.publish(["a"], [b"last"])
    server.settle()
    assert server.got("a") == [b"first", b"last"]


TOPICS = ("a", "b")
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["subscribe", "unsubscribe"]), st.sampled_from(TOPICS)),
        st.tuples(st.just("process"), st.integers(1, 5)),
        st.tuples(st.just("read"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.005, 0.5, 1.5])),
    ),
    max_size=60,
)


@examples(4)
@given(HAPPENINGS)
def test_a_permanent_subscriber_gets_each_message_once(
    happenings: list[tuple[str, object]],
) -> None:
    server = Server()
    number = 0
    owed: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    published: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    for what, how in happenings:
        if what == "publish":
            assert isinstance(how, list)
            payloads = [b"%d" % (number + at) for at in range(len(how))]
            number += len(how)
            for topic, payload in zip(how, payloads, strict=True):
                published[topic].append(payload)
                if topic.encode() in server.wanted:
                    owed[topic].append(payload)
            server.publish(how, payloads)
        elif what == "subscribe":
            server.wanted.add(str(how).encode())
        elif what == "unsubscribe":
            server.wanted.discard(str(how).encode())
            had = set(server.got(str(how)))
            owed[str(how)] = [payload for payload in owed[str(how)] if payload in had]
        elif what == "wait":
            assert isinstance(how, float)
            server.wait(how)
        else:
            assert isinstance(how, int)
            for _ in range(how):
                (server.process if what == "process" else server.read)()
    server.settle()
    for topic in TOPICS:
        got = server.got(topic)
        assert max(Counter(got).values(), default=1) == 1
        assert got == [payload for payload in published[topic] if payload in set(got)]
        assert set(owed[topic]) <= set(got)
    assert server.flows.held == 0
    assert server.flows.oldest() is None
    assert server.stats.sent >= len(server.delivered)
