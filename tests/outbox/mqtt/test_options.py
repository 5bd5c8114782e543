"""The settings of a connection: mosquitto's names, and one line for each error."""

from pathlib import Path
from typing import Any

import pytest

from outbox.mqtt.options import (
    LEFT_OUT,
    BridgeOptionError,
    ConnectionOptions,
    PeerAddress,
    PeerTls,
    read_connection,
)
from outbox.mqtt.topic_lines import TopicLine

LEAST: dict[str, Any] = {"addresses": ["broker.example"], "topic": ["sensors/# out 1"]}


def read(**table: Any) -> ConnectionOptions:
    return read_connection("plant2", {**LEAST, **table})


def test_the_least_that_a_connection_needs() -> None:
    assert read() == ConnectionOptions(
        "plant2",
        (PeerAddress("broker.example", 1883),),
        (TopicLine("sensors/#", "out", 1),),
    )
    assert read().peer_client_id("mylog") == "plant2.mylog"
    assert read().state_topic("mylog") == "$SYS/broker/connection/plant2.mylog/state"


def test_all_settings() -> None:
    options = read(
        addresses=["a.example:8884", "[::1]", "10.0.0.1:1884"],
        topic="# out 2 site1/ hq/",
        bridge_protocol_version="mqttv311",
        remote_clientid="me",
        remote_username="ann",
        remote_password_file="/run/secrets/plant2",
        bridge_cafile="ca.pem",
        bridge_certfile="cert.pem",
        bridge_keyfile="key.pem",
        bridge_alpn="mqtt",
        bridge_tls_version="tlsv1.3",
        bridge_insecure=True,
        cleansession=True,
        keepalive_interval=30,
        max_inflight_messages=50,
        bridge_receive_maximum=10,
        bridge_max_packet_size=2048,
        local_username="bridge",
        local_password="secret",
        round_robin=True,
        bridge_bind_address="10.0.0.2",
        bridge_tcp_keepalive="60 10 3",
        restart_timeout="2 20",
        try_private=False,
        notifications=False,
        notification_topic="state/me",
        bridge_outgoing_retain=False,
    )
    assert options == ConnectionOptions(
        "plant2",
        (
            PeerAddress("a.example", 8884),
            PeerAddress("::1", 8883),
            PeerAddress("10.0.0.1", 1884),
        ),
        (TopicLine("#", "out", 2, "site1/", "hq/"),),
        version=4,
        client_id="me",
        username="ann",
        password_file=Path("/run/secrets/plant2"),
        tls=PeerTls(
            Path("ca.pem"), Path("cert.pem"), Path("key.pem"), "tlsv1.3", "mqtt", insecure=True
        ),
        clean_session=True,
        keep_alive=30,
        max_inflight=50,
        receive_maximum=10,
        max_packet=2048,
        local_username="bridge",
        local_password="secret",
        round_robin=True,
        bind_address="10.0.0.2",
        tcp_keepalive=(60, 10, 3),
        restart_base=2,
        restart_cap=20,
        try_private=False,
        notifications=False,
        notification_topic="state/me",
        outgoing_retain=False,
    )
    assert [str(each) for each in options.addresses] == [
        "a.example:8884",
        "[::1]:8883",
        "10.0.0.1:1884",
    ]
    assert options.peer_client_id("mylog") == "me"


def test_a_password_is_not_shown() -> None:
    options = read(remote_username="ann", remote_password="hunter2")
    assert options.password == "hunter2"
    assert "hunter2" not in repr(options)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"addresses": []}, "addresses is missing"),
        ({"topic": []}, "topic is missing"),
        ({"addresses": ["a:b:c"]}, "addresses: 'a:b:c' is not HOST, HOST:PORT or [IPV6]:PORT"),
        ({"addresses": ["a:0"]}, "addresses: 'a:0' is not HOST"),
        ({"addresses": ["a:65536"]}, "addresses: 'a:65536' is not HOST"),
        ({"addresses": ["mqtts://a"]}, "addresses: 'mqtts://a' is not HOST"),
        ({"addresses": 1883}, "addresses: must be a list of texts"),
        ({"topic": ["# up 1"]}, "topic: '# up 1': the direction must be out, in or both"),
        ({"local_password": "a"}, "local_password also needs local_username"),
        ({"adresses": []}, 'unknown setting "adresses" (did you mean "addresses"?)'),
        ({"bridge_protocol_version": "5"}, "must be one of mqttv50, mqttv311, mqttv31, not '5'"),
        ({"remote_password": "a"}, "a password also needs remote_username"),
        (
            {"remote_username": "a", "remote_password": "a", "remote_password_file": "b"},
            "remote_password and remote_password_file: set one of them",
        ),
        ({"bridge_keyfile": "a"}, "bridge_keyfile also needs bridge_certfile"),
        ({"bridge_certfile": "a"}, "TLS also needs bridge_cafile, or bridge_tls_use_os_certs"),
        (
            {"bridge_cafile": "a", "bridge_tls_use_os_certs": True},
            "bridge_tls_use_os_certs and bridge_cafile: set one of them",
        ),
        ({"bridge_tls_version": "tlsv1.1"}, "must be one of tlsv1.2, tlsv1.3, not 'tlsv1.1'"),
        ({"cleansession": "false"}, "cleansession: must be true or false"),
        ({"keepalive_interval": 4}, "must be a whole number from 5 to 65535"),
        ({"keepalive_interval": True}, "must be a whole number from 5 to 65535"),
        ({"max_inflight_messages": 1001}, "must be a whole number from 1 to 1000"),
        ({"restart_timeout": "30 5"}, "must be from 1 to 3600 seconds, the base first"),
        ({"restart_timeout": "5 30 60"}, 'restart_timeout: must be "BASE CAP" or one whole number'),
        ({"restart_timeout": "soon"}, "restart_timeout: must be"),
        ({"restart_timeout": True}, "restart_timeout: must be"),
        ({"bridge_tcp_keepalive": "60"}, 'must be "IDLE INTERVAL COUNTER"'),
        ({"notification_topic": "a/#"}, "notification_topic: topic name contains a wildcard"),
        (
            {"bridge_session_expiry_interval": 60, "bridge_protocol_version": "mqttv311"},
            "also needs bridge_protocol_version = mqttv50",
        ),
        (
            {"bridge_session_expiry_interval": 60, "cleansession": True},
            "bridge_session_expiry_interval and cleansession = true: set one of them",
        ),
        (
            {"bridge_protocol_version": "mqttv31", "remote_clientid": "x" * 24},
            "MQTT 3.1 allows at most 23 characters",
        ),
    ],
)
def test_errors(table: dict[str, Any], error: str) -> None:
    with pytest.raises(BridgeOptionError) as raised:
        read(**table)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_says_what_to_do(name: str) -> None:
    with pytest.raises(BridgeOptionError) as raised:
        read(**{name: "x"})
    assert str(raised.value) == f"{name}: not supported: {LEFT_OUT[name]}"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_names(name: str) -> None:
    with pytest.raises(BridgeOptionError, match="is not a name"):
        read_connection(name, LEAST)
