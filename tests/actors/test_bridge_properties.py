"""Properties at the bridge: headers for NATS, remaining expiry, response topics."""

from collections.abc import Sequence

import pytest
from harness.bridgewire import Wire
from hypothesis import given
from hypothesis import strategies as st

from actors.bridge.bridge_properties import (
    PropertyLosses,
    PropertyReader,
    PropertyWriter,
    header_room,
)
from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.replies import LIFE, Answered, ReplySubjects
from actors.bridge.subscriber_probes import SubscriberProbes
from actors.bridge.to_nats import OutgoingMessages, ToNats
from actors.limits.bridge_options import BridgeOptions
from eventstore.log.message_store import StoredMessages
from protocol.mqtt.message_properties import (
    MessageProperties,
    encode_message_properties,
    expiry_of,
)
from protocol.nats.headers import constant_part, parse_headers
from protocol.nats.mapping import Mapping
from protocol.nats.property_headers import property_lines

INBOX = b"_INBOX.us."
NOW = 1_700_000_000


class Exit:
    """What messages pass on their way to a server."""

    def __init__(self, options: BridgeOptions | None = None) -> None:
        self.now = float(NOW)
        self.looked = 0
        """How often the clock was read."""
        self.wire = Wire(INBOX)
        self.stats = BridgeStats()
        self.expired = 0
        self.answers: list[tuple[str, bytes, bytes, str]] = []
        options = options or BridgeOptions(Mapping())
        self.replies = ReplySubjects(lambda: int(self.now))
        writer = PropertyWriter(
            options,
            self.replies,
            self._time_ms,
            PropertyLosses(self.stats),
            self._end,
        )
        self.flows = SubscriberProbes(
            self.wire, "n", lambda: 1.0, lambda _after, _do: None, self.stats, properties=writer
        )
        self.departures = ToNats(
            self.flows, options, lambda *answer: self.answers.append(answer), lambda _topic: True
        )

    def _time_ms(self) -> int:
        self.looked += 1
        return int(self.now * 1000)

    def _end(self, count: int) -> None:
        self.expired += count

    def send(
        self,
        topics: Sequence[str],
        *properties: MessageProperties | None,
        qos: int = 0,
        prefix: str = "",
        most: int = 1 << 20,
    ) -> int:
        """Send messages whose payloads are their numbers; return how many were too large."""
        blocks = [encode_message_properties(one) if one is not None else b"" for one in properties]
        expires = [NOW + left if (left := expiry_of(one)) is not None else 0 for one in blocks]
        payloads = [b"%d" % at for at in range(len(topics))]
        raw = [topic.encode() for topic in topics]
        content = StoredMessages(0, raw, payloads, len(topics), blocks)
        refs = range(70, 70 + len(topics)) if qos else ()
        leaving = OutgoingMessages(
            ("c",), prefix, qos, False, content, content.size, refs, expires=expires
        )
        left_out = self.departures.send(leaving, most)
        self.flows.flush()
        return left_out


@pytest.fixture
def outside() -> Exit:
    return Exit()


# ------------------------------------------------------------------ reply subjects


@given(st.text(min_size=1).map(str.encode), st.none() | st.binary(max_size=60))
def test_a_sealed_reply_subject_can_be_opened(subject: bytes, correlation: bytes | None) -> None:
    replies = ReplySubjects(lambda: NOW)
    sealed = replies.seal(subject, correlation)
    assert replies.unseal(sealed) == Answered(subject, correlation)
    assert ReplySubjects(lambda: NOW).unseal(sealed) is None  # of another broker


@given(st.data())
def test_a_changed_byte_makes_it_void(data: st.DataObject) -> None:
    replies = ReplySubjects(lambda: NOW)
    sealed = replies.seal(b"a.b", b"id")
    at = data.draw(st.integers(0, len(sealed) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda one: one != sealed[at]))
    assert replies.unseal(sealed[:at] + bytes((byte,)) + sealed[at + 1 :]) is None
    assert replies.unseal(sealed + b"x") is None
    assert replies.unseal(sealed[:-1]) is None


@given(st.binary(max_size=80))
def test_any_subject_can_be_read(sealed: bytes) -> None:
    assert ReplySubjects(lambda: NOW).unseal(sealed) is None


def test_it_is_void_after_an_hour() -> None:
    now = NOW
    replies = ReplySubjects(lambda: now)
    sealed = replies.seal(b"a", None)
    now += LIFE
    assert replies.unseal(sealed) is not None
    now += 1
    assert replies.unseal(sealed) is None


# ------------------------------------------------------------------ to NATS


def test_a_message_without_properties_is_as_before(outside: Exit) -> None:
    some = MessageProperties(content_type="a/b")
    outside.send(["a", "a", "a"], None, some, None, qos=1)
    outside.wire.answer()
    first, second, third = outside.wire.take()
    assert [one.headers.get("Content-Type") for one in (first, second, third)] == [
        None,
        "a/b",
        None,
    ]
    ids = [one.headers.get("Nats-Msg-Id") for one in (first, second, third)]
    assert ids == ["n-70", "n-71", "n-72"]
    assert [one.payload for one in (first, second, third)] == [b"0", b"1", b"2"]
    assert first.reply.startswith("_INBOX.us.")
    assert (second.reply, third.reply) == ("", "")


@pytest.mark.parametrize("qos", [0, 1])
def test_a_request_is_a_probe_too(outside: Exit, qos: int) -> None:
    asking = MessageProperties(response_topic="re/ply", correlation=b"\0id")
    outside.send(["a"], asking, qos=qos)
    (probe,) = outside.wire.take()
    token, _, sealed = probe.reply.removeprefix("_INBOX.us.").partition(".")
    assert outside.replies.unseal(sealed.encode()) == Answered(b"re.ply", b"\0id")
    # no responders: what was covered is dropped
    outside.send(["a"], asking, qos=qos)
    outside.flows.answered(probe.reply.encode(), b"NATS/1.0 503\r\n\r\n")
    assert outside.stats.sent == 0
    assert len(token) == 16
    # an answer of a service is none of a server
    outside.flows.answered(b"_INBOX.us.a.%b" % sealed.encode(), b"")


def test_all_that_ask_have_a_reply_subject(outside: Exit) -> None:
    asking = [MessageProperties(response_topic=f"r{at}") for at in range(3)]
    for _ in range(2):  # the second time without a probe
        outside.send(["a", "b", "a"], *asking)
        outside.wire.answer()
    sent = outside.wire.take()
    found = [
        outside.replies.unseal(one.reply.removeprefix("_INBOX.us.").partition(".")[2].encode())
        for one in sent
    ]
    assert sorted(one.subject for one in found if one is not None) == [
        b"r0", b"r0", b"r1", b"r1", b"r2", b"r2",
    ]  # fmt: skip
    assert [one.headers.get("Foldmq-Response-Topic") for one in sent if one.subject == "b"] == [
        "r1",
        "r1",
    ]


def test_answers_count_where_the_topic_is_mapped() -> None:
    rules = Mapping.parse(["re=plant1.re"], ["a/#", "re/#"], ["tenants.ann"])
    outside = Exit(BridgeOptions(rules, {"ann": "tenants.ann"}))
    for prefix in ("", "tenants.ann"):
        for topic in ("re/x", "other/x", "$SYS/x", "$nats/reply/t"):
            outside.send(["a/b"], MessageProperties(response_topic=topic), prefix=prefix)
            outside.wire.answer()
    found = []
    for one in outside.wire.take():
        answered = outside.replies.unseal(one.reply.partition(".")[2].split(".", 2)[-1].encode())
        found.append(answered.subject.decode() if answered is not None else None)
    wanted = ["plant1.re.x", None, None, None]
    assert found == [*wanted, *(one and f"tenants.ann.{one}" for one in wanted)]


def test_a_reply_subject_that_no_line_has_room_for_is_left_out(outside: Exit) -> None:
    for correlation, asked in ((bytes(100), True), (bytes(3000), False)):
        outside.send(["a"], MessageProperties(response_topic="r", correlation=correlation))
        outside.wire.answer()
        outside.send(["a"], MessageProperties(response_topic="r", correlation=correlation))
        (_, second) = outside.wire.take()[-2:]
        assert bool(second.reply) == asked
        assert second.headers.get("Foldmq-Correlation-Data") == "%00" * len(correlation)
    assert outside.stats.dropped_properties > 0


def test_the_clock_is_read_once_for_a_batch(outside: Exit) -> None:
    expiring = MessageProperties(expiry=10)
    outside.send(["a", "b"], expiring, expiring)
    outside.wire.answer()
    assert len(outside.wire.take()) == outside.looked + 1 == 2
    for batch in (1, 2):
        outside.send(["a", "b"] * 50, *[expiring] * 100)
        assert len(outside.wire.take()) == 100
        assert outside.looked == 1 + batch


def test_the_time_left_is_that_when_it_is_sent(outside: Exit) -> None:
    expiring = MessageProperties(expiry=10, content_type="a/b")
    outside.send(["a"], expiring)  # a probe, which the server answers late
    outside.send(["a", "a", "a"], expiring, MessageProperties(expiry=4), None)
    outside.now += 4.6
    outside.wire.answer()
    sent = outside.wire.take()
    assert [one.headers.get("Foldmq-Message-Expiry") for one in sent] == ["10", "6", None]
    assert [one.payload for one in sent] == [b"0", b"0", b"2"]
    assert outside.expired == 1
    assert outside.stats.sent == 3


def test_a_message_is_too_large_with_its_headers(outside: Exit) -> None:
    large = MessageProperties(user=(("é", "é" * 500),))
    assert outside.send(["a", "a"], large, None, most=3000) == 1
    outside.wire.answer()
    (sent,) = outside.wire.take()
    assert sent.payload == b"1"


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9),
        ),
        max_size=90,
    ).map(tuple),
    st.binary(max_size=50),
)
def test_headers_never_exceed_the_announced_size(
    user: tuple[tuple[str, str], ...], correlation: bytes
) -> None:
    properties = MessageProperties(1, 4_000_000_000, "é", "é/é", correlation, user)
    block = encode_message_properties(properties)
    writer = PropertyWriter(
        BridgeOptions(Mapping(), ttl=True),
        ReplySubjects(lambda: NOW),
        lambda: NOW * 1000,
        PropertyLosses(BridgeStats()),
        lambda _count: None,
    )
    constant = constant_part("a", 0, retain=False, client="c", node="n")
    head, _ = writer.head(constant, None, "", block, 0)
    assert len(head) - len(constant) - 2 <= header_room(block)


def test_answers_to_requests_have_their_properties(outside: Exit) -> None:
    some = MessageProperties(content_type="a/b")
    outside.send(["$nats/reply/t1", "$nats/reply/t2"], some, None)
    assert outside.answers == [
        ("t1", b"0", encode_message_properties(some), ""),
        ("t2", b"1", b"", ""),
    ]


def test_losses_are_counted_each_time_and_logged_once(
    outside: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors.bridge import bridge_properties

    lines: list[str] = []

    class Log:
        def warning(self, line: str, **_more: object) -> None:
            lines.append(line)

    monkeypatch.setattr(bridge_properties, "_log", Log())
    many = MessageProperties(user=tuple((f"k{at}", "v") for at in range(85)))
    for _ in range(3):
        outside.send(["a"], many)
        outside.wire.answer()
    assert outside.stats.dropped_properties == 15
    reader = PropertyReader(PropertyLosses(outside.stats))
    reader.read(parse_headers(b"NATS/1.0\r\nx: \xff\r\n\r\n"), b"", "a")
    assert outside.stats.dropped_properties == 16
    assert lines == [
        "bridge: properties of messages to NATS are left out",
        "bridge: properties of messages from NATS are left out",
    ]


# ------------------------------------------------------------------ from NATS


def test_the_correlation_data_of_a_request_is_that_of_its_answer() -> None:
    reader = PropertyReader(PropertyLosses(BridgeStats()))
    own = parse_headers(b"NATS/1.0\r\nFoldmq-Correlation-Data: own\r\n\r\n")
    assert reader.read(None, b"", "a", b"id").properties.correlation == b"id"
    assert reader.read(own, b"", "a", b"id").properties.correlation == b"own"
    assert reader.read(own, b"", "a").properties.correlation == b"own"


def test_a_copied_response_topic_is_not_that_of_the_answer() -> None:
    reader = PropertyReader(PropertyLosses(BridgeStats()))
    lines = property_lines(MessageProperties(response_topic="re/ply", content_type="a/b")).lines
    headers = parse_headers(b"NATS/1.0\r\n" + lines + b"\r\n")
    assert reader.read(headers, b"", "x").properties.response_topic == "re/ply"
    assert reader.read(headers, b"", "re/ply").properties.response_topic is None
    copied = reader.read(headers, b"", "x", copied=True).properties
    assert (copied.response_topic, copied.content_type) == (None, "a/b")
