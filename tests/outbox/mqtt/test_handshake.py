"""CONNECT and CONNACK of a bridge."""

from functools import partial
from typing import Any

import pytest

from outbox.mqtt.handshake import (
    PeerRefusedError,
    check_connack,
    connect_packet,
    keep_alive_of,
    limits_of,
    state_packet,
)
from outbox.mqtt.options import ConnectionOptions, read_connection
from outbox.mqtt.outbound import MAX_WINDOW, PeerLimits
from protocol.mqtt import property_table as table
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.packets import Connect, PacketType, Publishes, Will
from protocol.mqtt.server_packet_decoder import Answer

STATE = "$SYS/broker/connection/plant2.mylog/state"


def options(version: str = "mqttv50", **more: Any) -> ConnectionOptions:
    values = {"addresses": "a", "topic": "# out 1", "bridge_protocol_version": version}
    return read_connection("plant2", {**values, **more})


def decoded(packet: bytes) -> Any:
    decoder = Decoder(4096, v5=partial(PacketDecoderV5, 0))
    (found,) = decoder.feed(packet)
    assert decoder.error is None
    return found


def test_a_bridge_keeps_its_session_and_leaves_a_will() -> None:
    given = options(remote_username="ann")
    found = decoded(connect_packet(given, ("mylog", 7), "secret", clean=False, private=False))
    assert isinstance(found, Connect)
    assert (found.version, found.clean, found.bridge) == (5, False, False)
    assert found.client_id == "plant2.mylog"
    assert found.will == Will(STATE, b"0", 1, retain=True)
    assert (found.username, found.password) == ("ann", b"secret")
    assert found.properties is not None
    assert found.properties.session_expiry == 0xFFFFFFFF
    assert found.properties.user == (("foldmq-log", "mylog 7"),)


@pytest.mark.parametrize(("version", "level"), [("mqttv311", 4), ("mqttv31", 3)])
@pytest.mark.parametrize("private", [True, False])
def test_before_mqtt_5_it_says_that_it_is_a_bridge(version: str, level: int, private: bool) -> None:
    given = options(version, notifications=False, cleansession=True)
    found = decoded(connect_packet(given, ("mylog", 7), None, clean=False, private=private))
    assert (found.version, found.bridge, found.clean) == (level, private, True)
    assert found.will is None


def test_a_clean_session_ends_with_the_connection_if_the_settings_say_so() -> None:
    for given, expiry in (
        (options(), 0xFFFFFFFF),
        (options(bridge_session_expiry_interval=60), 60),
        (options(cleansession=True), 0),
    ):
        found = decoded(connect_packet(given, ("mylog", 7), None, clean=True, private=False))
        assert found.clean
        assert found.properties.session_expiry == expiry


def connack(reason: int = 0, **values: Any) -> Answer:
    properties = {getattr(table, name.upper()): value for name, value in values.items()}
    return Answer(PacketType.CONNACK, reason, properties=properties)


def test_limits() -> None:
    assert limits_of(connack(), options("mqttv311")) == PeerLimits(4, 20)
    assert limits_of(connack(), options("mqttv31", max_inflight_messages=7)) == PeerLimits(3, 7)
    assert limits_of(connack(), options()) == PeerLimits(5, MAX_WINDOW)
    given = options(max_inflight_messages=7)
    assert limits_of(connack(), given).window == 7
    found = limits_of(
        connack(receive_maximum=5, maximum_qos=1, retain_available=0, maximum_packet_size=99),
        given,
    )
    assert found == PeerLimits(5, 5, 1, False, 99)
    other = Answer(PacketType.CONNACK, user=(("foldmq-log", "far 0"),))
    assert limits_of(other, options()).takes_origins


def test_the_server_may_set_the_keep_alive() -> None:
    assert keep_alive_of(connack(), 60) == 60
    assert keep_alive_of(connack(server_keep_alive=7), 60) == 7


@pytest.mark.parametrize(
    ("version", "reason", "text", "misconfigured"),
    [
        (4, 1, "unsupported protocol version (0x84)", True),
        (4, 3, "server unavailable (0x88)", False),
        (4, 5, "not authorized (0x87)", True),
        (5, 0x86, "bad user name or password (0x86)", True),
        (5, 0x97, "quota exceeded (0x97)", False),
    ],
)
def test_refusals(version: int, reason: int, text: str, misconfigured: bool) -> None:
    with pytest.raises(PeerRefusedError) as raised:
        check_connack(connack(reason), version)
    assert str(raised.value) == f"the other broker refuses the connection: {text}"
    assert raised.value.misconfigured is misconfigured


def test_the_reason_string_is_shown() -> None:
    with pytest.raises(PeerRefusedError, match=r"\(0x87\) \(no such device\)"):
        check_connack(connack(0x87, reason_string="no such device"), 5)


@pytest.mark.parametrize("version", ["mqttv50", "mqttv311"])
def test_notifications_are_retained(version: str) -> None:
    given = options(version)
    decoder = Decoder(4096, v5=partial(PacketDecoderV5, 0))
    connect = connect_packet(given, ("mylog", 7), None, clean=False, private=False)
    _, found = decoder.feed(connect + state_packet(given, "mylog", b"1"))
    assert isinstance(found, Publishes)
    assert [(each.topic, each.payload, each.retain, each.qos) for each in found] == [
        (STATE.encode(), b"1", True, 0)
    ]
