"""NATS subscriptions for the filters of MQTT clients: counted, and one copy of each message.

The model of a server processes its input one command at a time, and messages are published at every
point in between.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import pytest
from harness.examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from actors.bridge.interest import DuplicateFilter, Interest
from actors.limits.bridge_options import BridgeOptions
from eventstore.nats.batch_transport import NatsMessage
from protocol.nats.mapping import Mapping
from protocol.nats.mapping import Mapping as SubjectMapping


class Server:
    """A NATS server, the connection to it, and what the bridge takes."""

    def __init__(
        self,
        rules: SubjectMapping | None = None,
        prefixes: dict[str, str] | None = None,
        users: dict[str, str] | None = None,
    ) -> None:
        options = BridgeOptions(rules or Mapping(), prefixes or {})
        self.users = users or {}
        self.interest = Interest(options, lambda name: options.prefix(self.users.get(name)))
        self.connected = True
        self.subscribed: dict[int, str] = {}
        """What the server knows."""
        self.taken: list[tuple[str, bytes]] = []
        """(topic, payload) of what MQTT clients get."""
        self._own: dict[int, str] = {}
        """What the connection subscribes to again when it comes back."""
        self._sid = 1
        self._sent: deque[tuple[object, ...]] = deque()
        self._coming: deque[Callable[[], None]] = deque()

    # what the interest calls

    def subscribe(self, subject: bytes) -> int:
        self._sid += 1
        self._own[self._sid] = subject.decode()
        if self.connected:
            self._sent.append(("SUB", self._sid, subject.decode()))
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        del self._own[sid]
        if self.connected:
            self._sent.append(("UNSUB", sid))

    def fence(self, done: Callable[[], None]) -> None:
        if self.connected:
            self._sent.append(("PING", done))

    # what happens

    def attach(self) -> None:
        self.interest.attach(self)

    def process(self) -> bool:
        """Have the server process a command; False: there is none."""
        if not self._sent:
            return False
        what, *how = self._sent.popleft()
        if what == "SUB":
            self.subscribed[how[0]] = how[1]  # type: ignore[index,assignment]
        elif what == "UNSUB":
            del self.subscribed[how[0]]  # type: ignore[arg-type]
        else:
            self._coming.append(how[0])  # type: ignore[arg-type]
        return True

    def publish(self, subject: str, payload: bytes = b"", *, backwards: bool = False) -> None:
        """Publish as a NATS client."""
        matching = [sid for sid, pattern in self.subscribed.items() if matches(pattern, subject)]
        for sid in reversed(matching) if backwards else matching:
            self._coming.append(lambda sid=sid: self._arrived(sid, subject, payload))  # type: ignore[misc]

    def _arrived(self, sid: int, subject: str, payload: bytes) -> None:
        place = self.interest.place(subject.encode())
        message = NatsMessage(sid, subject.encode(), b"", b"", payload)
        if place.topic is not None and self.interest.copies.first(place.sids, message):
            self.taken.append((place.topic.decode(), payload))

    def read(self) -> bool:
        """Have one thing read that came; False: there is none."""
        if not self._coming:
            return False
        self._coming.popleft()()
        return True

    @property
    def waits(self) -> bool:
        """Whether something was sent that the server has not processed."""
        return bool(self._sent)

    def settle(self) -> None:
        while self.process() or self.read():
            pass

    def lose(self) -> None:
        """Lose the connection."""
        self.connected = False
        self._sent.clear()
        self._coming.clear()
        self.subscribed.clear()
        self.interest.disconnected()

    def come_back(self) -> None:
        """Have another connection."""
        self.connected = True
        self._sent.extend(("SUB", sid, subject) for sid, subject in self._own.items())
        self.interest.reconnected()

    def patterns(self) -> list[str]:
        self.settle()
        return sorted(self.subscribed.values())


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern, as NATS has it."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > at
        if at == len(tokens) or token not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)


@pytest.fixture
def server() -> Server:
    made = Server()
    made.attach()
    return made


def test_one_subscription_for_each_filter_however_many_have_it(server: Server) -> None:
    for session in ("one", "two", "three"):
        server.interest.added(session, "a/b")
        server.interest.added(session, "c/#")
    assert server.patterns() == ["a.b", "c", "c.>"]
    assert (len(server.interest), server.interest.subjects) == (2, 3)
    for session in ("one", "two"):
        server.interest.removed(session, "a/b")
        server.interest.removed(session, "c/#")
    assert server.patterns() == ["a.b", "c", "c.>"]
    server.interest.removed("three", "c/#")
    assert server.patterns() == ["a.b"]
    server.interest.removed("three", "a/b")
    assert server.patterns() == []
    assert (len(server.interest), server.interest.subjects) == (0, 0)


def test_filters_share_subjects(server: Server) -> None:
    server.interest.added("one", "a/#")
    server.interest.added("two", "a")
    assert server.patterns() == ["a", "a.>"]
    server.interest.removed("one", "a/#")
    assert server.patterns() == ["a"]


def test_interest_from_before_the_connection_is_subscribed() -> None:
    server = Server()
    server.interest.added("one", "a")
    server.interest.added("one", "b")
    server.interest.removed("one", "b")
    server.attach()
    assert server.patterns() == ["a"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_filter_removed_while_disconnected_hides_no_other(server: Server, when: str) -> None:
    server.interest.added("one", "a/#")
    server.interest.added("two", "a/+")
    server.settle()
    if when == "before":
        server.interest.removed("one", "a/#")  # the server no longer gets it
    server.lose()
    if when == "after":
        server.interest.removed("one", "a/#")
    server.come_back()
    assert server.patterns() == ["a.*"]
    server.publish("a.b", b"x")
    server.settle()
    assert server.taken == [("a/b", b"x")]


def test_a_filter_that_comes_again_at_once_outlives_the_connection(server: Server) -> None:
    server.interest.added("one", "a")
    server.settle()
    server.interest.removed("one", "a")
    server.interest.added("one", "a")
    server.lose()
    server.come_back()
    assert server.patterns() == ["a"]
    server.publish("a", b"x")
    server.settle()
    assert server.taken == [("a", b"x")]


def test_a_refused_subscription_hides_no_other(server: Server) -> None:
    server.interest.added("one", "#")
    server.interest.added("two", "a")
    server.settle()
    (refused,) = [sid for sid, pattern in server.subscribed.items() if pattern == ">"]
    del server.subscribed[refused]
    server.interest.refused(">")
    server.interest.refused("never.asked")
    server.publish("a", b"x")
    server.settle()
    assert server.taken == [("a", b"x")]


def refuse(server: Server, subject: str) -> None:
    """Have the server refuse a subscription that it was just sent."""
    server.settle()
    (refused,) = [sid for sid, pattern in server.subscribed.items() if pattern == subject]
    del server.subscribed[refused]
    server.interest.refused(subject)


def test_a_repeatedly_refused_subscription_hides_no_other(server: Server) -> None:
    server.interest.added("two", "a")
    for number in range(3):
        server.interest.added("one", "#")
        refuse(server, ">")
        assert server.interest.subjects == 1
        server.publish("a", b"%d" % number)
        server.settle()
        server.interest.removed("one", "#")
        server._sent.popleft()  # the server knows of no such subscription
        server.settle()
    assert server.taken == [("a", b"0"), ("a", b"1"), ("a", b"2")]
    assert len(server.interest.copies) == 0


def test_no_copy_is_expected_from_a_refused_subscription(server: Server) -> None:
    server.interest.added("two", "a")
    server.settle()
    server.interest.added("one", "#")
    server.publish("a", b"x")
    server.read()
    assert len(server.interest.copies) == 1
    refuse(server, ">")
    assert len(server.interest.copies) == 0


def test_refused_subscriptions_are_retried_on_the_next_connection(server: Server) -> None:
    server.interest.added("one", "#")
    server.interest.added("two", "a")
    refuse(server, ">")
    server.lose()
    server.interest.renewed()
    server.come_back()
    assert server.patterns() == [">", "a"]
    assert server.interest.subjects == 2
    for subject in ("a", "b"):
        server.publish(subject, b"x")
    server.settle()
    assert sorted(server.taken) == [("a", b"x"), ("b", b"x")]


def test_a_filter_removed_while_refused_stays_removed(server: Server) -> None:
    server.interest.added("one", "#")
    refuse(server, ">")
    server.lose()
    server.interest.removed("one", "#")
    server.interest.renewed()
    server.come_back()
    assert server.patterns() == []
    assert server.interest.place(b"a").sids == ()


def test_many_that_end_at_once_are_confirmed_together(server: Server) -> None:
    filters = [f"a/{number}" for number in range(1000)]
    for topic_filter in filters:
        server.interest.added("one", topic_filter)
    server.settle()
    for topic_filter in filters:
        server.interest.removed("one", topic_filter)
    pings = 0
    while server.waits:
        pings += server._sent[0][0] == "PING"
        server.process()
        while server.read():
            pass
    assert server.subscribed == {}
    assert pings == 2, "one for the first, one for the others"
    assert server.interest.place(b"a.7").sids == ()


def test_a_bridge_that_begins_again_has_subscriptions_of_its_own(server: Server) -> None:
    server.interest.added("one", "a")
    server.interest.added("one", "b")
    server.settle()
    server.interest.removed("one", "b")
    server.interest.detach()
    assert server.patterns() == []
    assert (len(server.interest), server.interest.subjects) == (1, 0)
    server.interest.removed("one", "a")
    server.interest.added("two", "c/#")
    server.publish("c", b"lost")
    server.attach()
    assert server.patterns() == ["c", "c.>"]
    server.publish("c.d", b"x")
    server.settle()
    assert server.taken == [("c/d", b"x")]


def test_expected_copies_are_stored_as_digests(server: Server) -> None:
    server.interest.added("one", "#")
    server.interest.added("two", "a")
    server.settle()
    held = 0
    for number in range(100):
        server.publish("a", b"%d" % number + bytes(100_000))
        server.read()
        held = max(held, len(server.interest.copies))
        debts = server.interest.copies.of(server.subscribed)
        assert all(len(what) == 16 for _, what in debts)
        server.settle()
    assert held == 1
    assert len(server.taken) == 100
    assert len(server.interest.copies) == 0


def test_copies_are_distinguished_by_their_whole_content() -> None:
    copies = DuplicateFilter()
    for number, parts in enumerate(
        [
            (b"a", b"", b"", b""),
            (b"", b"a", b"", b""),
            (b"", b"", b"a", b""),
            (b"", b"", b"", b"a"),
            (b"a", b"b", b"", b""),
            (b"ab", b"", b"", b""),
        ],
        1,
    ):
        assert copies.first((1, 2), NatsMessage(1, *parts))
        assert len(copies) == number
    assert not copies.first((1, 2), NatsMessage(2, b"a", b"", b"", b""))
    assert copies.first((1, 2), NatsMessage(2, b"a", b"", b"", b""))


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API",
        "_INBOX.a",
        "foldmq",
        "foldmq.log.n",
        "$nats.reply.x",
        "a..b",
        ".a",
        "a b",
        "a./20./zz",
    ],
)
def test_subjects_without_a_topic_are_not_placed(server: Server, subject: str) -> None:
    server.interest.added("one", "#")
    server.settle()
    assert server.interest.place(subject.encode()).topic is None
    assert server.interest.place(b"\xff" + subject.encode()).topic is None


def test_requests_are_a_filter_of_their_own(server: Server) -> None:
    server.interest.added("one", "$nats/request/+/svc/#")
    assert server.patterns() == ["svc", "svc.>"]
    assert server.interest.requests == 1
    server.interest.added("two", "svc/a")
    server.publish("svc.a", b"x")
    server.settle()
    assert server.taken == [("svc/a", b"x")]
    server.interest.removed("one", "$nats/request/+/svc/#")
    assert server.patterns() == ["svc.a"]
    assert server.interest.requests == 0


def test_users_with_a_prefix_have_subjects_of_their_own() -> None:
    prefixes = {"ann": "tenants.ann"}
    server = Server(Mapping(prefixes=prefixes.values()), prefixes, {"hers": "ann"})
    server.attach()
    server.interest.added("hers", "a/#")
    server.interest.added("other", "a/#")
    assert server.patterns() == ["a", "a.>", "tenants.ann.a", "tenants.ann.a.>"]
    place = server.interest.place(b"tenants.ann.a.b")
    assert (place.prefix, place.topic) == ("tenants.ann", b"a/b")
    server.users.clear()  # whatever its current owner
    server.interest.removed("hers", "a/#")
    assert server.patterns() == ["a", "a.>"]


SUBJECTS = ("a", "a.b", "a.c", "b", "b.b", "a.b.c")
FILTERS = ("#", "a/#", "a/+", "a/b", "+/b", "b", "a/b/#", "+")
SESSIONS = ("one", "two")
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), st.sampled_from(SESSIONS), st.sampled_from(FILTERS)),
        st.tuples(st.just("publish"), st.sampled_from(SUBJECTS), st.booleans()),
        st.tuples(st.just("process"), st.integers(1, 6), st.just("")),
        st.tuples(st.just("read"), st.integers(1, 4), st.just("")),
        st.tuples(st.just("reconnect"), st.just(""), st.just("")),
    ),
    max_size=80,
)


@examples(4)
@given(HAPPENINGS)
@example(
    [
        ("toggle", "one", "#"),
        ("toggle", "two", "a/b"),
        ("process", 6, ""),
        ("toggle", "one", "#"),
        ("publish", "a.b", ""),
        ("process", 2, ""),
        ("publish", "a.b", ""),
        ("read", 3, ""),
        ("toggle", "one", "#"),
        ("publish", "a.b", ""),
    ]
)
@pytest.mark.slow
def test_each_message_is_received_once_while_a_filter_stays(
    happenings: Sequence[tuple[str, object, object]],
) -> None:
    server = Server()
    server.attach()
    live: set[tuple[str, str]] = set()
    known: set[tuple[str, str]] = set()
    """Filters that the server has known since they were made."""
    owed: dict[bytes, set[tuple[str, str]]] = {}
    """Filters that a message matched when it was published and that are there still."""
    topics: dict[bytes, str] = {}
    for what, how, topic_filter in happenings:
        if what == "toggle":
            wanted = str(how), str(topic_filter)
            if wanted in live:
                live.remove(wanted)
                known.discard(wanted)
                server.interest.removed(*wanted)
                done = {payload for _, payload in server.taken}
                for payload, filters in owed.items():
                    if payload not in done:
                        filters.discard(wanted)
            else:
                live.add(wanted)
                server.interest.added(*wanted)
        elif what == "publish":
            payload = b"%d" % len(topics)
            subject = str(how)
            topics[payload] = subject.replace(".", "/")
            owed[payload] = {
                (session, wanted)
                for session, wanted in known
                if any(matches(pattern, subject) for pattern in Mapping().subjects(wanted))
            }
            server.publish(subject, payload, backwards=bool(topic_filter))
        elif what == "reconnect":
            lost = set(topics) - {payload for _, payload in server.taken}
            for payload in lost:
                owed[payload].clear()
            server.lose()
            server.come_back()
            known.clear()
        else:
            assert isinstance(how, int)
            for _ in range(how):
                (server.process if what == "process" else server.read)()
            if not server.waits:
                known = set(live)
    server.settle()
    got = Counter(payload for _, payload in server.taken)
    assert max(got.values(), default=1) == 1
    assert all(topics[payload] == topic for topic, payload in server.taken)
    assert {payload for payload, filters in owed.items() if filters} <= set(got)
    wanted_now = {pattern for _, one in live for pattern in Mapping().subjects(one)}
    assert set(server.patterns()) == wanted_now
