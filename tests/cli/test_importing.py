"""``foldmq import``: the settings, sessions and retained messages of other brokers."""

import contextlib
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, environment, free_port
from harness.certs import Authority
from harness.packets import Publish
from harness.rawclient import RawClient

from cli.migration.imported_log import ImportedState
from cli.migration.imported_settings import ImportedSettings
from cli.migration.mosquitto_database import DamagedDatabase, read_database
from cli.migration.mosquitto_settings import import_mosquitto_settings
from cli.migration.nats_settings import import_nats_settings
from eventstore.format.positions import position
from projections.state.waiting_queue import WaitingQueue, waiting

NEVER = 0xFFFFFFFF
NOW = 1_800_000_000


def chunk(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">II", kind, len(body)) + body


def message(
    number: int, topic: str, payload: bytes, qos: int = 1, expires: int = 0, properties: bytes = b""
) -> bytes:
    sizes = struct.pack(">IHHHHHBB", len(payload), 0, 3, 0, len(topic), 0, qos, 0)
    head = struct.pack("<Qq", number, expires) + sizes
    return chunk(2, head, b"pub", topic.encode(), payload, properties)


def client(name: str, user: str, *, version: int, interval: int = NEVER, expires: int = 0) -> bytes:
    head = struct.pack("<q", expires) + struct.pack(">IHH", interval, 40, len(name))
    if version == 6:
        return chunk(6, head, struct.pack(">HH4x", 1883, len(user)), name.encode(), user.encode())
    return chunk(6, head, name.encode())


def sent(
    number: int, name: str, pid: int, qos: int, state: int, *, incoming: bool = False
) -> bytes:
    numbers = struct.pack(">HHBBBB", pid, len(name), qos, state, 0, 0 if incoming else 1)
    return chunk(3, struct.pack("<Q", number), numbers, name.encode())


def subscription(
    name: str, topic_filter: str, qos: int, options: int = 0, number: int = 0
) -> bytes:
    sizes = struct.pack(">IHHBB2x", number, len(name), len(topic_filter), qos, options)
    return chunk(5, sizes, name.encode(), topic_filter.encode())


def retained(number: int) -> bytes:
    return chunk(4, struct.pack("<Q", number))


def database(version: int = 6) -> list[bytes]:
    """A database in pieces: the header, then the chunks."""
    return [
        b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, version),
        chunk(1, struct.pack("<QBB6x", 90, 1, 8)),
        message(12, "a/2", b"second", properties=b"\x07\x03\x00\x04text"),
        message(11, "a/1", b"first", expires=NOW + 60),
        message(13, "a/3", b"third", qos=2),
        message(14, "a/4", b"over", expires=1000),
        message(15, "a/5", b"released", qos=2),
        message(16, "up", b"unreleased", qos=2),
        message(17, "r/1", b"kept", qos=0),
        client("s", "ann", version=version),
        sent(11, "s", 38, 1, 3),
        sent(13, "s", 39, 2, 5),
        sent(15, "s", 37, 2, 9),
        sent(12, "s", 40, 1, 11),
        sent(14, "s", 41, 1, 11),
        sent(17, "s", 0, 0, 11),
        sent(16, "s", 5, 2, 7, incoming=True),
        client("over", "ann", version=version, interval=60, expires=1000),
        subscription("s", "a/#", 2, 8, 7),
        subscription("s", "$share/g/b/#", 1),
        retained(17),
        retained(14),
    ]


@pytest.mark.parametrize("version", [5, 6])
def test_a_session_has_what_mosquitto_kept_of_it(tmp_path: Path, version: int) -> None:
    path = tmp_path / "mosquitto.db"
    path.write_bytes(b"".join(database(version)))
    state = ImportedState(read_database(path), NOW)
    session = state.node.sessions.peek("s")
    assert session is not None
    assert (session.user, session.expiry, session.level) == (
        "ann" if version == 6 else None,
        None,
        5,
    )
    held = session.subscriptions["a/#"]
    assert (held.qos, held.options, held.identifier) == (2, 8, 7)
    first = position(1, 0)
    assert {pid: (one.ref, one.flags) for pid, one in session.inflight.items()} == {
        38: (first, 1),
        39: (first + 2, 2),
    }
    assert {pid: one.ref for pid, one in session.releasing.items()} == {37: first + 4}
    assert session.inbound == {5: first + 5}
    assert isinstance(held.queue, WaitingQueue)
    assert list(held.queue) == [waiting(first + 1, 1, retain=False)]
    assert (session.queued, session.queued_bytes, session.last_pid) == (1, 6, 40)
    assert held.outstanding == 3
    assert state.messages[first].block == b"\x02\x00\x00\x00\x3c"
    assert state.messages[first].expires == NOW + 60
    assert state.messages[first + 1].block == b"\x03\x00\x04text"
    assert state.messages[first + 5].publisher == "pub"
    assert "$share/g/b/#" in state.node.sessions
    assert "over" not in state.node.sessions
    assert state.node.retained.topics() == ["r/1"]
    assert dict(state.left_out) == {"queued messages at QoS 0, which foldmq does not queue": 1}
    assert state.counts["expired message"] == 2
    assert state.counts["expired session"] == 1


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.db"
    pieces = database()
    data = b"".join(pieces)
    ends = {sum(map(len, pieces[:count])) for count in range(1, len(pieces) + 1)}
    for size in range(len(data)):
        if size not in ends:  # there is no end mark
            path.write_bytes(data[:size])
            with pytest.raises(DamagedDatabase):
                read_database(path)
    for wrong in (
        retained(99),
        sent(99, "s", 1, 1, 11),
        sent(11, "nobody", 1, 1, 11),
        subscription("s", "a/#/b", 1),
        message(11, "a", b"twice"),
        chunk(9, b""),
        retained(11) + b"x",
    ):
        path.write_bytes(data + wrong)
        with pytest.raises(DamagedDatabase):
            read_database(path)


def foldmq(*arguments: object) -> tuple[int, str, str]:
    code, out, err = forkserver.run([*map(str, arguments)], environment(), 90)
    return code, out.decode(), err.decode()


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Broker]:
    """A running broker with its data below a directory."""
    broker = Broker(directory, forked=True)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.mark.system
def test_nothing_is_written_for_a_damaged_database(tmp_path: Path) -> None:
    broken, conf = tmp_path / "broken.db", tmp_path / "mosquitto.conf"
    broken.write_bytes(b"".join(database())[:-1])
    conf.write_text("")
    to = tmp_path / "new"
    code, out, err = foldmq("import", "mosquitto", conf, "--database", broken, "--to", to)
    assert (code, out, err.count("\n")) == (65, "", 1)
    assert f"{broken}: damaged or incomplete" in err
    assert not to.exists()


@pytest.mark.system
def test_clients_continue_their_sessions(tmp_path: Path) -> None:
    path, conf = tmp_path / "my.db", tmp_path / "mosquitto.conf"
    pieces = [one.replace(struct.pack("<q", NOW + 60), bytes(8)) for one in database()]
    path.write_bytes(b"".join(pieces))
    conf.write_text(f"persistence true\npersistence_location {tmp_path}/\npersistence_file my.db\n")
    code, out, err = foldmq("import", "mosquitto", conf, "--to", tmp_path)
    assert (code, out) == (73, "")
    assert "is not empty" in err
    to = tmp_path / "new"
    (to / "data" / "unfinished.tmp").mkdir(parents=True)  # an import that was killed
    code, _, err = foldmq("import", "mosquitto", conf, "--to", to)
    assert code == 1, err
    data = ("--data-dir", to / "data")
    code, out, _ = foldmq("log", "verify", *data)
    assert code == 0
    assert "the log begins with the state of another broker" in out
    with started(to) as broker:
        one = RawClient(broker.port)
        assert one.connect("s", clean=False).session_present
        received = [packet for packet in one.receive_all() if isinstance(packet, Publish)]
        assert [(packet.topic, packet.payload, packet.qos) for packet in received] == [
            ("a/1", b"first", 1),
            ("a/3", b"third", 2),
            ("a/2", b"second", 1),
        ]
        assert [packet.packet_id for packet in received[:2]] == [38, 39]
        other = RawClient(broker.port)
        other.connect("other")
        other.subscribe(("r/#", 1))
        assert other.expect_a(Publish).payload == b"kept"
        assert foldmq("verify", *data)[0] == 0
        assert "the previous run" not in broker.log
        assert "crash" not in foldmq("status", *data)[1] + foldmq("doctor", *data)[1]
        one.close()
        other.close()
    assert foldmq("log", "verify", *data)[0] == 0


CONF = """\
listener 1883 127.0.0.1
persistent_client_expiration 2w
max_inflight_messages 0
message_size_limit 5000
include_dir {more}
queue_qos0_messages true
connection up
address example.net
topic # both
listener 0 /run/m.sock
listener 8883 ::1
certfile {more}/cert
keyfile {more}/key
cafile {more}/ca
crlfile {more}/crl
require_certificate true
use_identity_as_username true
protocol websockets
no_such_option 1
"""


def test_mosquittos_settings_become_those_of_foldmq(tmp_path: Path) -> None:
    more, conf = tmp_path / "more", tmp_path / "mosquitto.conf"
    more.mkdir()
    (more / "b.conf").write_text("acl_file acl\n")
    (more / "a.conf").write_text("max_keepalive 60\n")
    (tmp_path / "acl").write_text("user ann\ntopic read a/#\nwrong\n")
    conf.write_text(CONF.format(more=more))
    result = ImportedSettings(conf, tmp_path / "new")
    assert import_mosquitto_settings(result) is None
    result.write()
    written = tomllib.loads((tmp_path / "new" / "foldmq.toml").read_text())
    listeners = written.pop("listen")
    assert written == {
        "connection": {
            "up": {
                "addresses": ["example.net"],
                "topic": ['# both 0 "" ""'],
                "bridge_protocol_version": "mqttv311",
            }
        },
        "allow_anonymous": False,
        "session_expiry": "336h",
        "max_ack_pending": 65535,
        "max_packet_size": 6024,
        "max_keep_alive": 60,
        "data_dir": str(tmp_path / "new" / "data"),
        "permissions": str(tmp_path / "new" / "permissions.toml"),
    }
    assert listeners == [
        {"address": "127.0.0.1:1883"},
        {"address": "unix:/run/m.sock"},
        {
            "address": "wss://[::1]:8883",
            "tls_cert": f"{more}/cert",
            "tls_key": f"{more}/key",
            "tls_client_certs": "required",
            "tls_client_ca": f"{more}/ca",
            "tls_crl": f"{more}/crl",
            "tls_identity": "cn",
        },
    ]
    assert [line.partition(": ")[0] for line in result.unmatched] == [
        f"{tmp_path}/acl:3",
        f"{conf}:6",
        f"{conf}:19",
    ]


PLUGINS = """\
global_plugin /usr/lib/mosquitto/mosquitto_persist_sqlite.so
plugin_opt_db_file /var/lib/mosquitto/mosquitto.sqlite3
listener 1883 127.0.0.1
plugin /usr/lib/mosquitto/mosquitto_password_file.so
plugin_opt_password_file users
plugin /usr/lib/mosquitto/mosquitto_acl_file.so
plugin_opt_acl_file acl
"""


def test_the_file_plugins_of_mosquitto_2_1_are_read_as_their_files(tmp_path: Path) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(PLUGINS)
    (tmp_path / "users").write_text("")
    (tmp_path / "acl").write_text("user ann\ntopic read a/#\n")
    result = ImportedSettings(conf, tmp_path / "new")
    import_mosquitto_settings(result)
    result.write()
    written = tomllib.loads((tmp_path / "new" / "foldmq.toml").read_text())
    assert written["password_file"] == str(tmp_path / "users")
    assert 'users = ["ann"]' in (tmp_path / "new" / "permissions.toml").read_text()
    (line,) = result.unmatched
    assert line.startswith(f"{conf}:1: global_plugin ")
    assert "its database is not read: copy the retained messages" in line


CONNECTIONS = """\
listener 1883 127.0.0.1
allow_anonymous true
connection plant.2
addresses a.example:8883 b.example
topic sensors/# out 2 "" hq/
topic cmd/# in 1
topic state/# both 1
topic log/# out
topic a/#/b out 1
bridge_protocol_version mqttv50
remote_clientid me
username ann
remote_password secret
bridge_cafile {here}/ca
bridge_psk 1234
bridge_tls_version tlsv1.1
cleansession false
keepalive_interval 30
notifications false
round_robin true
restart_timeout 5 30
start_type automatic
local_cleansession true
connection inwards
address c.example
topic # in
connection nothing
address c.example
"""


def test_connections_to_other_brokers_become_tables(tmp_path: Path) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(CONNECTIONS.format(here=tmp_path))
    (tmp_path / "ca").symlink_to(Authority(tmp_path / "certificates").file)
    result = ImportedSettings(conf, tmp_path / "new")
    import_mosquitto_settings(result)
    result.write()
    assert result.problem() is None
    written = tomllib.loads((tmp_path / "new" / "foldmq.toml").read_text())
    assert written["connection"] == {
        "plant-2": {
            "addresses": ["a.example:8883", "b.example"],
            "topic": [
                'sensors/# out 2 "" hq/',
                'cmd/# in 1 "" ""',
                'state/# both 1 "" ""',
                'log/# out 0 "" ""',
            ],
            "bridge_protocol_version": "mqttv50",
            "remote_clientid": "me",
            "remote_username": "ann",
            "remote_password": "secret",
            "bridge_cafile": str(tmp_path / "ca"),
            "cleansession": False,
            "keepalive_interval": 30,
            "notifications": False,
            "round_robin": True,
            "restart_timeout": "5 30",
        },
        "inwards": {
            "addresses": ["c.example"],
            "topic": ['# in 0 "" ""'],
            "bridge_protocol_version": "mqttv311",
        },
    }
    assert [line.removeprefix(f"{conf}:").partition(":")[0] for line in result.unmatched] == [
        *("9", "15", "23", "3", "27"),
    ]
    assert "connection plant.2: bridge_tls_version: must be one of" in "\n".join(result.unmatched)


@pytest.mark.parametrize(
    ("lines", "anonymous", "address"),
    [
        ("", True, "127.0.0.1:1883"),
        ("listener 1883 127.0.0.1", False, "127.0.0.1:1883"),
        ("port 1884\nbind_address 127.0.0.1", False, "127.0.0.1:1884"),
        ("listener 1883 127.0.0.1\nallow_anonymous true", True, "127.0.0.1:1883"),
    ],
)
def test_the_result_is_accepted_and_as_open_as_mosquitto(
    tmp_path: Path, lines: str, *, anonymous: bool, address: str
) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(lines + "\n")
    result = ImportedSettings(conf, tmp_path / "new")
    import_mosquitto_settings(result)
    result.write()
    assert result.settings["allow_anonymous"] is anonymous
    assert result.listeners == [{"address": address}]
    assert result.problem() is None


NATS = """\
mqtt { listen: "127.0.0.1:1884", ack_wait: "10s", no_auth_user: ann }
authorization {
  users = [
    { user: ann, password: secret, permissions: { publish: "a.*.b", subscribe: {deny: "a.>"} },
      allowed_connection_types: [MQTT] }
    { user: service, password: other, allowed_connection_types: [STANDARD] }
  ]
}
"""


def test_the_mqtt_block_of_nats_becomes_settings(tmp_path: Path) -> None:
    conf = tmp_path / "nats.conf"
    conf.write_text(NATS)
    result = ImportedSettings(conf, tmp_path / "new")
    import_nats_settings(result)
    result.write()
    assert result.problem() is None
    assert result.listeners == [{"address": "127.0.0.1:1884"}]
    assert result.settings["ack_wait"] == "10s"
    assert list(result.passwords) == ["ann"]
    rules = tomllib.loads(result.permissions)
    assert rules["allow"] == [{"users": ["ann"], "publish": ["a/+/b"], "subscribe": ["#"]}]
    assert rules["deny"] == [{"users": ["ann"], "subscribe": ["a/#"]}]
    assert [line.split(": ")[0] for line in result.unmatched] == [f"{conf}:1"]


@pytest.mark.system
def test_retained_messages_are_copied_between_brokers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with started(tmp_path / "a") as old, started(tmp_path / "b") as new:
        for broker, topics in ((old, ("x", "y")), (new, ("y",))):
            with RawClient(broker.port) as one:
                one.connect("publisher")
                for topic in topics:
                    one.publish(topic, str(broker is old).encode(), qos=1, retain=True)
        code, out, err = foldmq(
            *("import", "retained", f"127.0.0.1:{old.port}", "--quiet", "0.5"),
            *("--to-url", f"mqtt://127.0.0.1:{new.port}"),
        )
        assert (code, err) == (0, "")
        assert "1 retained message copied" in out
        with RawClient(new.port) as one:
            one.connect("reader")
            one.subscribe(("#", 1))
            found = {one.expect_a(Publish).topic: None for _ in range(2)}
        assert sorted(found) == ["x", "y"]
    assert foldmq("import", "retained")[0] == 2
    code, _, err = foldmq("import", "retained", f"127.0.0.1:{free_port()}")
    assert code == 1
    assert "cannot connect" in err
