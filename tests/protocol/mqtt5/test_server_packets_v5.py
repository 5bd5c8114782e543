"""The packets of a server at level 5, byte for byte, bounded, and decoded."""

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.encoder import PublishEncoder
from protocol.mqtt.message_properties import expiry_of
from protocol.mqtt.packets import PacketType, Publish
from protocol.mqtt.property_codec import Value, encode_properties, encode_property
from protocol.mqtt.property_table import FROM_SERVERS as PROPERTIES_OF_SERVERS
from protocol.mqtt.publish_encoder_v5 import (
    AliasNumbers,
    PacketVariant,
    SentAliases,
    TopicAliasMode,
    prepare_publishes,
)
from protocol.mqtt.reason_codes import (
    ENDINGS,
    FOR_CONNECT_CODES,
    FROM_CLIENTS,
    FROM_SERVERS,
    REFUSALS,
    STATEMENTS,
    ReasonCode,
)
from protocol.mqtt.server_packet_decoder import Answer, SentMessage, read_server_packets
from protocol.mqtt.server_packet_encoder_v5 import (
    ConnackProperties,
    Explanation,
    encode_acks_v5,
    encode_codes_v5,
    encode_connack_v5,
    encode_explained_ack,
    encode_server_auth,
    encode_server_disconnect,
)

WHY = Explanation("full", (("k", "v"),))
STRING, USER = b"\x1f\0\4full", b"\x26\0\1k\0\1v"


def read_one(raw: bytes) -> Answer:
    ((packet, stop),) = read_server_packets(raw, v5=True)
    assert stop == len(raw)
    assert isinstance(packet, Answer)
    return packet


# --- golden bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (encode_connack_v5(0), b"\x20\3\0\0\0"),
        (encode_connack_v5(0, session_present=True), b"\x20\3\1\0\0"),
        (encode_connack_v5(0x87, session_present=True), b"\x20\3\0\x87\0"),
        (encode_connack_v5(0x97, about=WHY), b"\x20\x11\0\x97\x0e" + STRING + USER),
        (encode_acks_v5(PacketType.PUBACK, [1, 258]), b"\x40\2\0\1\x40\2\1\2"),
        (encode_acks_v5(PacketType.PUBREC, [1, 2], [0, 0]), b"\x50\2\0\1\x50\2\0\2"),
        (encode_acks_v5(PacketType.PUBREC, [1, 2], [0, 0x97]), b"\x50\2\0\1\x50\3\0\2\x97"),
        (encode_acks_v5(PacketType.PUBREL, [1], [0x92]), b"\x62\3\0\1\x92"),
        (encode_codes_v5(PacketType.SUBACK, 1, [0, 1, 2, 0x87]), b"\x90\7\0\1\0\0\1\2\x87"),
        (encode_codes_v5(PacketType.UNSUBACK, 258, [0, 0x11]), b"\xb0\5\1\2\0\0\x11"),
        (encode_server_disconnect(0x8E), b"\xe0\1\x8e"),
        (encode_server_disconnect(0x9C, server_reference="a"), b"\xe0\6\x9c\4\x1c\0\1a"),
        (encode_server_auth(0x18, "m", b"\1"), b"\xf0\x0a\x18\x08\x15\0\1m\x16\0\1\1"),
    ],
)
def test_bytes(raw: bytes, expected: bytes) -> None:
    assert raw == expected


def test_a_connack_has_values_that_differ_from_the_defaults() -> None:
    assert encode_connack_v5(0, properties=ConnackProperties()) == b"\x20\3\0\0\0"
    full = ConnackProperties(
        session_expiry=0,
        receive_maximum=10,
        maximum_qos=1,
        retain_available=False,
        maximum_packet_size=1000,
        assigned_client_identifier="id",
        topic_alias_maximum=5,
        wildcard_subscriptions=False,
        subscription_identifiers=False,
        shared_subscriptions=False,
        server_keep_alive=0,
        response_information="reply/c",
        server_reference="other:1883",
        authentication_method="m",
        authentication_data=b"\0",
    )
    read = read_one(encode_connack_v5(0, session_present=True, properties=full, about=WHY))
    assert read.session_present
    assert read.properties == {
        0x11: 0, 0x21: 10, 0x24: 1, 0x25: 0, 0x27: 1000, 0x12: "id", 0x22: 5, 0x28: 0, 0x29: 0,
        0x2A: 0, 0x13: 0, 0x1A: "reply/c", 0x1C: "other:1883", 0x15: "m", 0x16: b"\0",
        0x1F: "full",
    }  # fmt: skip
    assert read.user == (("k", "v"),)
    assert set(read.properties) | {0x26} == set(PROPERTIES_OF_SERVERS[PacketType.CONNACK])


# --- Maximum Packet Size ---------------------------------------------------------------------

MAKERS = {
    "CONNACK": lambda **more: encode_connack_v5(0x97, about=WHY, **more),
    "PUBACK": lambda **more: encode_explained_ack(PacketType.PUBACK, 1, 0x97, WHY, **more),
    "PUBREC": lambda **more: encode_explained_ack(PacketType.PUBREC, 1, 0x97, WHY, **more),
    "SUBACK": lambda **more: encode_codes_v5(PacketType.SUBACK, 1, [0x97], WHY, **more),
    "UNSUBACK": lambda **more: encode_codes_v5(PacketType.UNSUBACK, 1, [0x87], WHY, **more),
    "DISCONNECT": lambda **more: encode_server_disconnect(0x97, WHY, **more),
    "AUTH": lambda **more: encode_server_auth(0x18, "m", None, WHY, **more),
}


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_larger_than_the_client_takes_is_sent(name: str) -> None:
    make = MAKERS[name]
    whole = make()
    assert whole.count(STRING + USER) == 1
    seen = set()
    for limit in range(5, len(whole) + 3):
        raw = make(limit=limit)
        assert len(raw) <= limit
        seen.add((STRING in raw, USER in raw))
        if raw:
            assert read_one(raw).kind.name == name
    assert {(True, True), (True, False), (False, False)} == seen
    assert make(limit=len(whole)) == whole
    assert USER not in make(limit=len(whole) - 1)


@pytest.mark.parametrize("name", ["PUBACK", "PUBREC", "SUBACK", "UNSUBACK", "AUTH"])
def test_without_problem_information_there_is_no_reason_string(name: str) -> None:
    raw = MAKERS[name](explain=False)
    assert STRING not in raw
    assert USER not in raw


def test_an_answer_that_cannot_be_made_small_enough_is_empty() -> None:
    properties = ConnackProperties(assigned_client_identifier="x" * 100)
    assert encode_connack_v5(0, properties=properties, limit=50) == b""
    assert encode_codes_v5(PacketType.SUBACK, 1, [0] * 100, limit=50) == b""
    assert encode_server_disconnect(0x8E, limit=2) == b""
    assert encode_server_disconnect(0x8E, limit=3) == b"\xe0\1\x8e"


# --- reason codes ----------------------------------------------------------------------------


def test_every_reason_code_has_a_packet() -> None:
    allowed = set().union(*FROM_SERVERS.values(), *FROM_CLIENTS.values())
    assert allowed == {code.value for code in ReasonCode}
    assert len(ReasonCode) == 43
    assert set(STATEMENTS) == set(FROM_SERVERS)


def test_sent_properties_are_allowed_in_their_packets() -> None:
    assert set(ENDINGS.values()) <= FROM_SERVERS[PacketType.DISCONNECT]
    assert set(REFUSALS.values()) <= FROM_SERVERS[PacketType.CONNACK]
    assert set(FOR_CONNECT_CODES.values()) <= FROM_SERVERS[PacketType.CONNACK]


def test_every_end_that_is_the_broker_s_has_a_reason_code() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "contribute" / "events.md").read_text(
        "utf-8"
    )
    table = page.partition("`SessionClosed.reason` is one of")[2].partition("`SessionExpired")[0]
    reasons = set(re.findall(r"(?m)^\| `(\w+)`", table))
    of_the_client = {"disconnect", "closed", "error", "protocol_error", "broker_restarted"}
    # A shared subscription is a session without a connection; its end sends no packet.
    of_the_client.add("shared")
    assert reasons - of_the_client <= set(ENDINGS)


def test_every_close_in_the_broker_has_a_reason_code() -> None:
    actors = Path(__file__).resolve().parents[3] / "actors"
    sources = [path.read_text("utf-8") for path in actors.rglob("*.py")]

    def named(pattern: str) -> set[str]:
        return {name for source in sources for name in re.findall(pattern, source)}

    closed = named(r"\b(?:Close|\.close|_let_go)\((?:\w+, )?\"(\w+)\"")
    # Of a protocol error the code is its own; before a CONNECT there is nobody to be told, and a
    # client that sent DISCONNECT is told nothing.
    assert closed - {"protocol_error", "connect_timeout", "disconnect"} <= set(ENDINGS)
    refused = named(r"\brefuse\([\w.]+, \"(\w+)\"")
    assert refused <= set(REFUSALS) | {"not_authorised"}


# --- messages --------------------------------------------------------------------------------

blocks = st.sampled_from([b"", b"", b"\1\1", b"\2\0\0\0\x3c", b"\2\0\0\0\1\3\0\1x"])
messages = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"a/b", b"x" * 200]),
        st.sampled_from([b"", b"m", b"y" * 121]) | st.binary(max_size=150),
        st.integers(1, 65_535),
        blocks,
    ),
    max_size=30,
)
variants = st.builds(
    PacketVariant,
    st.integers(0, 2),
    st.just(5),
    st.booleans(),
    st.lists(st.sampled_from([1, 127, 128, 268_435_455]), max_size=3).map(tuple),
    st.integers(0, 70),
    st.sampled_from(TopicAliasMode),
)
NUMBERS = {b"a/b": 3, b"x" * 200: 65_535}


def _expected(
    one: tuple[bytes, bytes, int, bytes], variant: PacketVariant, *, dup: bool
) -> tuple[Publish, int]:
    topic, payload, pid, block = one
    expiry = expiry_of(block)
    if expiry is not None:
        block = encode_property(2, max(0, expiry - variant.waited)) + block[5:]
    alias = NUMBERS.get(topic, 0) if variant.aliases else 0
    if alias and variant.aliases is TopicAliasMode.NUMBERS:
        topic = b""
    pid = pid if variant.qos else 0
    return Publish(topic, payload, variant.qos, variant.retain, dup, pid, block), alias


@given(messages, variants, st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 35))
def test_messages_are_encoded_for_the_connection(
    batch: list[tuple[bytes, bytes, int, bytes]],
    variant: PacketVariant,
    again: bool,
    with_blocks: bool,
    start: int,
    stop: int,
) -> None:
    if not with_blocks:
        batch = [(*one[:3], b"") for one in batch]
    dup = again and variant.qos > 0
    sent = [_expected(one, variant, dup=dup) for one in batch]
    outgoing = prepare_publishes(
        [one[0] for one in batch],
        [one[1] for one in batch],
        [one[3] for one in batch] if with_blocks else (),
        variant,
        NUMBERS,
    )
    assert len(outgoing) == len(batch)
    pids = [one[2] for one in batch]
    for first, last in ((0, None), (0, None), (start, stop), (start, None)):
        raw = outgoing.render(pids[first:last], first, last, dup=dup)
        read = [packet for packet, _ in read_server_packets(raw, v5=True)]
        assert read == [
            SentMessage(publish, variant.identifiers, alias) for publish, alias in sent[first:last]
        ]
    read_sizes = []
    at = 0
    for _, end in read_server_packets(outgoing.render(pids), v5=True):
        read_sizes.append(end - at)
        at = end
    assert outgoing.sizes == read_sizes
    limit = sorted(read_sizes)[len(read_sizes) // 2] if read_sizes else 0
    assert outgoing.too_large(limit) == [
        index for index, size in enumerate(read_sizes) if limit and size > limit
    ]


def test_a_simple_encoding_equals_that_of_the_client() -> None:
    outgoing = prepare_publishes([b"t"], [b"m"], (), PacketVariant(1))
    assert outgoing.render([7]) == encode_publish(b"t", b"m", 1, 7, block=b"")
    assert prepare_publishes([b"t"], [b"m"], (), PacketVariant(0)).render() == b"\x30\5\0\1t\0m"


@pytest.mark.parametrize(("version", "qos"), list(product([3, 4], [0, 1, 2])))
def test_before_level_5_nothing_but_topic_and_payload_is_sent(version: int, qos: int) -> None:
    variant = PacketVariant(qos, version, False, (1,), 3, TopicAliasMode.NUMBERS)
    outgoing = prepare_publishes([b"t"], [b"m"], [b"\2\0\0\0\x09"], variant, {b"t": 1})
    assert outgoing.render([1]) == PublishEncoder([b"t"], [b"m"], qos).render([1])


def test_outgoing_that_does_not_fit_together() -> None:
    with pytest.raises(ValueError, match="payloads"):
        prepare_publishes([b"a", b"b"], [b""], (), PacketVariant(0))
    with pytest.raises(ValueError, match="2 packet identifiers for 1 messages"):
        prepare_publishes([b"a"], [b""], (), PacketVariant(1)).render([1, 2])


def test_numbers_for_topics_are_given_out_once() -> None:
    numbers = AliasNumbers(2, shortest=3)
    assert [numbers.number(topic) for topic in (b"ab", b"abc", b"abcd", b"abcde")] == [0, 1, 2, 0]
    assert [numbers.number(topic) for topic in (b"abcd", b"abc")] == [2, 1]


def test_an_alias_is_announced_before_it_is_used() -> None:
    sent = SentAliases(5)
    assert sent.use([]) is TopicAliasMode.NONE
    assert sent.use([0]) is TopicAliasMode.NONE
    assert sent.use([6]) is TopicAliasMode.NONE
    assert sent.use([1, 5]) is TopicAliasMode.SET
    assert sent.use([5]) is TopicAliasMode.NUMBERS
    assert sent.use([1, 2]) is TopicAliasMode.SET
    assert sent.use([2, 6]) is TopicAliasMode.NONE
    assert sent.use([1, 2, 5]) is TopicAliasMode.NUMBERS
    assert SentAliases(0).use([1]) is TopicAliasMode.NONE


@pytest.mark.parametrize(
    "data", [b"\x30", b"\x30\5\0", b"\x10\0", b"\0\0", b"\x82\2\0\1", b"\xc0\0"]
)
def test_packets_of_clients_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"whole|server|valid"):
        list(read_server_packets(data, v5=True))


def test_pings_and_several_packets_are_read_back() -> None:
    raw = b"\xd0\0" + encode_server_disconnect(0) + encode_codes_v5(PacketType.SUBACK, 1, [0])
    assert [packet for packet, _ in read_server_packets(raw, v5=True)] == [
        Answer(PacketType.PINGRESP),
        Answer(PacketType.DISCONNECT),
        Answer(PacketType.SUBACK, packet_id=1, codes=b"\0"),
    ]


def test_a_block_without_values_is_empty() -> None:
    nothing: dict[int, Value | None] = {3: None}
    assert encode_properties(nothing) == b""
