"""Admission: what happens to each message of a packet, and in which order the rules apply."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.access.rules import TopicAcl
from actors.session.decisions.publish_admission import (
    PublishRules,
    admit,
    admit_by_topic,
    admits,
    refused_topic,
)
from protocol.mqtt.packets import Publishes

IS_TEXT = b"\x01\x01"
DENIED, BROKEN, INVALID_TOPIC = 0x87, 0x99, 0x90


class NoLocks:
    """The permissions of a client that may publish everywhere but to ``locked``."""

    def __init__(self) -> None:
        self.publish = {
            topic: topic != b"locked" for topic in (b"a", b"b", b"locked", b"$SYS/x", b"a/b/c")
        }

    def denied(self, topics: Sequence[bytes]) -> set[bytes]:
        return {topic for topic in topics if topic == b"locked"}


NO_LOCKS = cast("TopicAcl", NoLocks())


def packet(qos: int, *messages: tuple[bytes, ...], pids: Sequence[int] = ()) -> Publishes:
    """Make a packet of messages: topic, payload, and properties if there are any."""
    made = Publishes(qos)
    made.topics += [one[0] for one in messages]
    made.payloads.extend(one[1] for one in messages)
    if any(len(one) == 3 for one in messages):
        made.blocks = [one[2] if len(one) == 3 else b"" for one in messages]
    made.packet_ids += pids or (range(1, len(messages) + 1) if qos else ())
    return made


def test_what_breaks_no_rule_is_accepted_as_it_is() -> None:
    for qos in (0, 1, 2):
        sent = packet(qos, (b"a", b"1"), (b"b", b"2"))
        found = admit(sent, PublishRules(max_levels=1), NO_LOCKS, {7: 0}, explain=True)
        assert found.accepted is sent
        assert (found.answered, found.drops, found.close, found.reasons) == (2, (), "", ())


ALL: list[tuple[bytes, ...]] = [
    (b"a", b"1"),
    (b"a/b/c", b"2"),
    (b"$SYS/x", b"3"),
    (b"locked", b"4"),
    (b"a", b"\xff", IS_TEXT),
    (b"b", b"6"),
]
RULES = PublishRules(check_payload_format=True, max_levels=2)


def test_each_drop_has_its_reason_and_its_code() -> None:
    found = admit(packet(1, *ALL), RULES, NO_LOCKS, {}, explain=True)
    assert found.accepted == packet(1, ALL[0], ALL[5], pids=[1, 6])
    assert found.drops == [
        ("not_permitted", [b"locked"]),
        ("payload_format", [b"a"]),
        ("reserved_topic", [b"$SYS/x"]),
        ("topic_levels", [b"a/b/c"]),
    ]
    assert list(found.reasons) == [0, INVALID_TOPIC, INVALID_TOPIC, DENIED, BROKEN, 0]
    assert (found.answered, found.close) == (6, "")
    assert admit(packet(1, *ALL), RULES, NO_LOCKS, {}).reasons == ()


def test_a_message_that_is_not_recorded_may_have_a_reserved_topic() -> None:
    found = admit(packet(0, *ALL), RULES, NO_LOCKS, {}, explain=True)
    assert found.accepted.topics == [b"a", b"$SYS/x", b"b"]
    assert [reason for reason, _ in found.drops] == [
        "not_permitted",
        "payload_format",
        "topic_levels",
    ]


def test_a_denied_message_closes_the_connection_where_the_operator_asks_for_it() -> None:
    rules = PublishRules(close_denied=True, check_payload_format=True)
    sent = packet(1, ALL[4], ALL[0], ALL[3], ALL[4], ALL[3])
    found = admit(sent, rules, NO_LOCKS, {}, explain=True)
    assert found.accepted == packet(1, ALL[0], pids=[2])
    assert found.drops == [("not_permitted", [b"locked"]), ("payload_format", [b"a"])]
    assert (found.answered, found.close, list(found.reasons)) == (2, "not_permitted", [BROKEN, 0])


def test_a_message_that_is_too_large_closes_the_connection_unless_it_is_dropped() -> None:
    sent = packet(1, ALL[3], ALL[0], ALL[5], ALL[3])
    found = admit(sent, RULES, NO_LOCKS, {}, [0, 2], explain=True)
    assert found.accepted == packet(1, ALL[0], pids=[2])
    assert found.drops == [("not_permitted", [b"locked"])]
    assert (found.answered, found.close) == (2, "message_too_large")
    assert list(found.reasons) == [DENIED, 0]


def test_qos_2_is_rejected_as_a_whole() -> None:
    found = admit(packet(2, *ALL), PublishRules(reject_qos2=True), NO_LOCKS, {})
    assert (len(found.accepted), found.answered, found.drops) == (0, 0, ())
    assert found.close == "qos2_rejected"
    assert not admit(packet(1, *ALL), PublishRules(reject_qos2=True), None, {}).close


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_what_is_sent_again_is_acknowledged_and_no_rule_applies_to_it() -> None:
    sent = packet(2, ALL[3], ALL[4], ALL[0], ALL[0], pids=[7, 8, 9, 9])
    found = admit(sent, RULES, NO_LOCKS, {7: 1, 8: 2}, [0], explain=True)
    assert found.accepted == packet(2, ALL[0], pids=[9])
    assert (found.answered, found.drops, found.close, found.reasons) == (4, [], "", ())


def test_a_packet_identifier_is_free_after_a_refusal() -> None:
    sent = packet(2, ALL[2], ALL[0], pids=[9, 9])
    found = admit(sent, RULES, None, {}, explain=True)
    assert found.accepted == packet(2, ALL[0], pids=[9])
    assert list(found.reasons) == [INVALID_TOPIC, 0]


def test_wills_and_messages_from_nats_are_admitted_by_topic() -> None:
    rules = PublishRules(reject_qos2=True, close_denied=True, max_levels=2)
    found = admit_by_topic(packet(2, *ALL), rules)
    assert found.accepted.topics == [b"a", b"locked", b"a", b"b"]
    assert found.drops == [("reserved_topic", [b"$SYS/x"]), ("topic_levels", [b"a/b/c"])]
    sent = packet(0, (b"a", b"x"))
    assert admit_by_topic(sent, rules).accepted is sent


@pytest.mark.parametrize(
    ("topic", "retain", "levels", "reason"),
    [
        (b"a/b/c/d", False, 4, ""),
        (b"a/b/c/d/e", False, 4, "topic_levels"),
        (b"/" * 65_535, False, 0, ""),
        (b"$SYS/x", False, 0, "reserved_topic"),
        (b"$SYS", False, 0, "reserved_topic"),
        (b"$other/x", True, 0, ""),
        (b"$nats/x", False, 0, "reserved_topic"),
        (b"$nats/reply/x", False, 0, ""),
        (b"$nats/reply/x", True, 0, "reserved_topic"),
    ],
)
def test_topics_to_which_no_client_may_publish(
    topic: bytes, levels: int, reason: str, *, retain: bool
) -> None:
    assert refused_topic(topic, PublishRules(max_levels=levels), retain=retain) == reason


@pytest.mark.parametrize(
    ("bridge", "named", "reason"),
    [
        (True, "any", ""),
        ("own", "own", ""),
        ("own", "other", "reserved_topic"),
        ("+", "other", "reserved_topic"),
        ("", "", "reserved_topic"),
        (False, "own", "reserved_topic"),
    ],
)
def test_the_state_of_a_connection_is_published_by_bridges_and_the_client_of_that_name(
    *, bridge: bool | str, named: str, reason: str
) -> None:
    topic = f"$SYS/broker/connection/{named}/state".encode()
    assert refused_topic(topic, PublishRules(), retain=True, bridge=bridge) == reason
    assert refused_topic(b"$SYS/broker/uptime", PublishRules(), bridge=bridge) == "reserved_topic"


@given(
    topic=st.sampled_from([b"a", b"b", b"locked"]),
    qos=st.sampled_from([0, 1, 2]),
    pid=st.sampled_from([7, 8]),
    text=st.booleans(),
    restricted=st.booleans(),
    settings=st.fixed_dictionaries(
        {name: st.booleans() for name in ("reject_qos2", "close_denied", "check_payload_format")}
    ),
)
def test_the_fast_path_admits_only_what_the_session_accepts_without_further_effects(
    topic: bytes, qos: int, pid: int, settings: dict[str, Any], *, text: bool, restricted: bool
) -> None:
    rules = PublishRules(**settings)
    access = NO_LOCKS if restricted else None
    sent = packet(qos, (topic, b"\xff", IS_TEXT if text else b""), pids=[pid] if qos else ())
    found = admit(sent, rules, access, {7: 0}, explain=True)
    plain = found.accepted is sent and not (found.drops or found.close or found.reasons)
    assert admits(rules, access, {7: 0}, topic, qos, pid, is_text=text) is plain
