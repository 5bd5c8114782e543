"""The ``foldmq`` command as a user runs it: a process, its output and its exit code."""

import errno
import json
import os
import platform
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from fakebroker import CONNACK_OK, fake_broker
from harness import forkserver
from harness.broker import free_port

from cli.clients import client_session, connection, message_text
from cli.clients.client_options import BrokerFlags
from cli.common import interpreter
from cli.common.package_version import version
from cli.common.units import Address
from cli.settings.setting_flags import SETTING_NAMES, USUAL_SETTINGS
from cli.settings.setting_sources import flag_of

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
SESSION = client_session.ClientSession()
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", *arguments]


def foldmq(
    *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **(environment or {})}
    code, out, err = forkserver.run(arguments, env, 60, stdin)
    return subprocess.CompletedProcess(arguments, code, out, err)


def started(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run it in an interpreter of its own."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


def refused(result: subprocess.CompletedProcess[bytes], exit_code: int) -> str:
    """Give the one line on stderr, without ``foldmq: ``; there is nothing else."""
    text = result.stderr.decode()
    assert result.returncode == exit_code, text
    assert result.stdout == b""
    assert text.startswith("foldmq: ")
    assert text.count("\n") == 1
    return text.removeprefix("foldmq: ").rstrip("\n")


@pytest.fixture(name="free_port")
def _free_port() -> int:
    return free_port()


@pytest.fixture
def mosquitto(free_port: int, tmp_path: Path) -> Iterator[int]:
    """Another broker, so that the clients are tested against one that is known to be right."""
    if MOSQUITTO is None:
        pytest.skip("Mosquitto is not installed")
    config = tmp_path / "mosquitto.conf"
    # By default it drops what a subscriber does not read fast enough.
    config.write_text(
        f"listener {free_port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
    )
    process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                    break
            time.sleep(0.05)
        yield free_port
    finally:
        process.terminate()
        process.wait(10)


def subscribed(port: int, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``foldmq sub`` on a retained message and return when it has printed that one."""
    foldmq("pub", "-p", str(port), "-t", "ready", "-m", "ready", "-r", "-q", "1")
    process = subprocess.Popen(
        command("sub", "-p", str(port), "-t", "ready", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    return process


def test_version() -> None:
    for arguments in (["version"], ["--version"]):
        result = started(*arguments)
        assert result.returncode == 0
        assert result.stdout.startswith(b"foldmq ")


def test_version_says_what_foldmq_runs_as() -> None:
    build = json.loads(started("version", "--json").stdout)
    assert build["version"] == version
    assert build["python"] == platform.python_version()
    assert build["compiled"] is interpreter.compiled()
    assert build["nats_server"].startswith("2.15.")
    assert build["nats_server_problem"] is None


def test_serve_help_names_every_setting() -> None:
    text = foldmq("serve", "--help-all").stdout.decode()
    for name in ("config", *SETTING_NAMES):
        assert flag_of(name) in text, name


def test_help_shows_the_usual_settings_and_help_all_the_others() -> None:
    text = foldmq("serve", "-h").stdout.decode()
    for name in USUAL_SETTINGS:
        assert f" {flag_of(name)} " in text, name
    assert "--max-ack-pending" not in text
    assert "--help-all" in text


@pytest.mark.parametrize("command", [["sessions", "ls"], ["log"], ["log", "verify"], ["why"]])
def test_flags_for_an_external_nats_server_are_one_line(command: list[str]) -> None:
    text = foldmq(*command, "-h").stdout.decode()
    assert "--nats-url" in text
    assert "--nats-creds" not in text
    assert "--nats-creds" in foldmq(*command, "--help-all").stdout.decode()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("pub", "-h -p -t -m -q -r -l -n -f -i -c -u -P -V -x --will-topic --url"),
        ("sub", "-h -p -t -q -C -W -E -v -F -i -c -u -P -V -x --retain-as-published --url --json"),
    ],
)
def test_clients_take_the_flags_that_users_of_mosquitto_expect(name: str, flags: str) -> None:
    text = foldmq(name, "--help").stdout.decode()
    for flag in flags.split():
        assert f" {flag}," in text or f" {flag} " in text, flag


# --- serve refuses before it starts anything


def test_serve_refuses_other_machines_without_users(tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = foldmq("serve", "--listen", "0.0.0.0:0", "--data-dir", str(data))
    assert "password_file" in refused(result, 78)
    assert not data.exists()


# --- pub and sub


def test_lines_from_stdin_arrive_in_order(mosquitto: int) -> None:
    reader = subscribed(mosquitto, "-t", "a/#", "-q", "1", "-C", "5001", "-v")
    lines = b"".join(b"line %d\n" % number for number in range(5000))
    sent = foldmq("pub", "-p", str(mosquitto), "-t", "a/b", "-q", "1", "-l", stdin=lines)
    assert (sent.returncode, sent.stderr) == (0, b"")
    out, errors = reader.communicate(timeout=30)
    assert (reader.returncode, errors) == (0, b"")
    assert out == lines.replace(b"line", b"a/b line")


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_every_qos_from_url_to_json(mosquitto: int, qos: str) -> None:
    reader = subscribed(mosquitto, "-t", "a", "-q", qos, "-C", "2", "--json")
    url = f"mqtt://127.0.0.1:{mosquitto}"
    assert foldmq("pub", "--url", url, "-t", "a", "-m", "ä", "-q", qos).returncode == 0
    out, _ = reader.communicate(timeout=30)
    assert json.loads(out) == {"topic": "a", "qos": int(qos), "retain": False, "payload": "ä"}


def test_a_payload_from_a_file_is_bytes_and_an_empty_one_clears_the_retained_message(
    mosquitto: int, tmp_path: Path
) -> None:
    port = str(mosquitto)
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    assert foldmq("pub", "-p", port, "-t", "r", "-f", str(file), "-r", "-q", "1").returncode == 0
    assert foldmq("sub", "-p", port, "-t", "r", "-C", "1").stdout == b"\x00\xff\n"
    result = foldmq("sub", "-p", port, "-t", "r", "-C", "1", "--json")
    assert json.loads(result.stdout)["payload_base64"] == "AP8="
    assert foldmq("pub", "-p", port, "-t", "r", "-n", "-r", "-q", "1").returncode == 0
    result = foldmq("sub", "-p", port, "-t", "r", "-C", "1", "-W", "0.5")
    assert refused(result, 27) == "timed out after 0.5 s"


def test_a_kept_session_gets_only_unprinted_messages(mosquitto: int) -> None:
    port = str(mosquitto)
    session = ["sub", "-p", port, "-t", "k", "-q", "1", "-i", "keeper", "-c"]
    assert foldmq(*session, "-E").returncode == 0
    foldmq("pub", "-p", port, "-t", "k", "-q", "1", "-l", stdin=b"1\n2\n3\n")
    assert foldmq(*session, "-E").stdout == b""
    assert foldmq(*session, "-C", "1").stdout == b"1\n"
    assert foldmq(*session, "-C", "2").stdout == b"2\n3\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["pub", "-t", "a"], "use exactly one of -m, -f, -n and -l"),
        (["pub", "-t", "a", "-m", "x", "-n"], "exactly one of"),
        (["pub", "-t", "a", "-f", "/nonexistent"], "/nonexistent: cannot read: No such file"),
        (["pub", "-t", "a", "-n", "-P", "x"], "needs a user name (-u)"),
        (["pub", "-t", "a", "-n", "--url", "http://a"], "--url must be mqtt://"),
        (["pub", "-t", "a", "-n", "--url", "mqtt://a:b"], "the port must be a number"),
        (["pub", "-t", "a", "-n", "-c"], "needs a client identifier (-i)"),
        (["sub", "-t", "a", "-c"], "needs a client identifier (-i)"),
        (["sub", "-t", "a", "-E", "-C", "1"], "cannot be combined"),
        (["sub", "-t", "a", "-v", "--json"], "use at most one of -v, --json and -F"),
        (["sub", "-t", "a", "-F", "%t %x"], '-F "%t %x": there is no field %x; fields are %%'),
        (["sub", "-t", "$share/g/a", "--no-local"], "--no-local cannot be combined"),
        (["sub", "-t", "$share//a", "-V", "5"], 'topic "$share//a": share name is empty'),
        (["sub", "-t", "a", "--retain-handling", "now"], "must be always, new or never"),
        (["sub", "-t", "a", "--no-local", "-V", "311"], "--no-local needs MQTT 5, not -V 311"),
        (["pub", "-t", "a", "-n", "-V", "6"], '-V "6": must be 5, 311 or 31'),
        (["pub", "-t", "a", "-n", "--utf8", "-V", "mqttv31"], "--utf8 needs MQTT 5, not -V mqtt"),
        (["pub", "-t", "a", "-n", "-x", "1h"], "--session-expiry needs a client identifier (-i)"),
        (["pub", "-t", "a", "-n", "-x", "0.5"], "--session-expiry 0.5: must be whole seconds"),
        (["pub", "-t", "a", "-n", "-x", "always"], '--session-expiry "always": must be a time'),
        (["pub", "-t", "a", "-n", "--user-property", "a"], '"a": must be NAME=VALUE'),
        (["pub", "-t", "a", "-n", "--content-type", "\udcff"], "is not UTF-8"),
        (["pub", "-t", "a", "-n", "--response-topic", "a/#"], "contains a wildcard"),
        (["pub", "-t", "a", "-n", "--will-delay", "3s"], "--will-delay needs --will-topic"),
        (["pub", "-t", "a", "-n", "--will-retain"], "--will-retain needs --will-topic"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: list[str], problem: str) -> None:
    assert problem in refused(foldmq(*arguments), 2)


def test_pub_fails_when_no_broker_listens(free_port: int) -> None:
    result = foldmq("pub", "-n", "-t", "a", "-p", str(free_port))
    expected = f"cannot connect to 127.0.0.1:{free_port}: Connection refused"
    assert refused(result, 1) == expected


def test_sub_waits_for_a_broker_that_starts_later(free_port: int) -> None:
    process = subprocess.Popen(
        command("sub", "-p", str(free_port), "-t", "a", "-E"), cwd=ROOT, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    waiting = f"foldmq: cannot connect to 127.0.0.1:{free_port}: Connection refused, trying again"
    assert process.stderr.readline().decode() == waiting + "\n"
    with fake_broker(CONNACK_OK, b"\x90\x03\x00\x01\x00", port=free_port):
        assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_sub_waits_for_a_broker_no_longer_than_its_timeout(free_port: int) -> None:
    result = foldmq("sub", "-t", "a", "-p", str(free_port), "-W", "0.1")
    assert result.returncode == 27
    waiting, ended = result.stderr.decode().splitlines()
    reason = f"cannot connect to 127.0.0.1:{free_port}: Connection refused"
    assert waiting == f"foldmq: {reason}, trying again"
    assert ended == f"foldmq: timed out: {reason}"


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (TimeoutError("timed out"), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (ssl.SSLError(1, "wrong version number"), True),
        (mqtt.WebsocketConnectionError("status 404"), True),
    ],
)
def test_which_failures_to_connect_may_pass(
    monkeypatch: pytest.MonkeyPatch, error: Exception, lasting: bool
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr(mqtt.Client, "connect", fail)
    target = connection.target_of(BrokerFlags("host", 1))
    made = connection.new_client(target, SESSION)
    with pytest.raises(connection.ClientError) as raised:
        connection.connect(made, target, SESSION)
    assert isinstance(raised.value, connection.UnreachableError) is not lasting


@pytest.mark.parametrize("arguments", [["pub", "-n"], ["sub"]])
@pytest.mark.parametrize(
    ("code", "reason"), [(3, "server unavailable"), (4, "bad user name"), (5, "not authorized")]
)
def test_refused_connection_exits_with_the_return_code(
    arguments: list[str], code: int, reason: str
) -> None:
    with fake_broker(bytes([0x20, 2, 0, code])) as port:
        result = foldmq(*arguments, "-t", "a", "-p", str(port))
    message = refused(result, code)
    assert message.startswith(f"127.0.0.1:{port} refused the connection: ")
    assert reason in message


def test_refused_subscription() -> None:
    # paho numbers packets from 1.
    with fake_broker(CONNACK_OK, b"\x90\x04\x00\x01\x01\x80") as port:
        result = foldmq("sub", "-p", str(port), "-t", "a", "-t", "b")
    assert refused(result, 1) == f"127.0.0.1:{port} refused the subscription to 'b'"


# --- pub and sub at level 5

CONNACK5_OK = b"\x20\x03\x00\x00\x00"


@pytest.mark.parametrize("arguments", [["pub", "-n"], ["sub"]])
@pytest.mark.parametrize(
    ("connack", "exit_code", "reason"),
    [
        (b"\x20\x03\x00\x87\x00", 5, "not authorized (0x87)"),
        (b"\x20\x08\x00\x89\x05\x1f\x00\x02a\n", 3, 'try again later (0x89, "a\\n")'),
        (b"\x20\x03\x00\x8a\x00", 1, "the client is banned (0x8A)"),
        (
            b"\x20\x02\x00\x01",
            1,
            "the broker does not support this version of MQTT (see -V) (0x84)",
        ),
    ],
    ids=["reason", "words", "banned", "level 4 only"],
)
def test_refused_connection_at_level_5(
    arguments: list[str], connack: bytes, exit_code: int, reason: str
) -> None:
    with fake_broker(connack) as port:
        result = foldmq(*arguments, "-t", "a", "-p", str(port), "-V", "5")
    message = refused(result, exit_code)
    assert message.startswith(f"127.0.0.1:{port} refused the connection: ")
    assert message.endswith(reason)


@pytest.mark.parametrize(
    ("qos", "answer"),
    [("1", b"\x40\x04\x00\x01\x87\x00"), ("2", b"\x50\x03\x00\x01\x87")],
    ids=["PUBACK", "PUBREC"],
)
def test_refused_message(qos: str, answer: bytes) -> None:
    with fake_broker(CONNACK5_OK, answer) as port:
        result = foldmq("pub", "-p", str(port), "-t", "a", "-m", "x", "-q", qos, "-V", "5")
    expected = f"127.0.0.1:{port} refused a message to 'a': not authorized (0x87)"
    assert refused(result, 1) == expected


def test_refused_subscription_at_level_5() -> None:
    with fake_broker(CONNACK5_OK, b"\x90\x05\x00\x01\x00\x01\x9e") as port:
        result = foldmq("sub", "-p", str(port), "-t", "a", "-t", "$share/g/b", "-V", "5")
    reason = "the broker does not support shared subscriptions (0x9E)"
    expected = f"127.0.0.1:{port} refused the subscription to '$share/g/b': {reason}"
    assert refused(result, 1) == expected


def test_the_reason_of_a_closed_connection_is_printed() -> None:
    with fake_broker(CONNACK5_OK, b"\xe0\x02\x95\x00") as port:
        result = foldmq("pub", "-p", str(port), "-t", "a", "-m", "x", "-q", "1", "-V", "5")
    closed = f"127.0.0.1:{port} closed the connection: a packet is too large (0x95)"
    assert refused(result, 1) == f"{closed}; messages not acknowledged: 1"


def test_sub_does_not_reconnect_after_a_takeover() -> None:
    taken_over = b"\x90\x04\x00\x01\x00\x00\xe0\x02\x8e\x00"
    with fake_broker(CONNACK5_OK, taken_over) as port:
        result = foldmq("sub", "-p", str(port), "-t", "a", "-V", "5")
    reason = "another connection took over the client identifier (0x8E)"
    assert refused(result, 1) == f"127.0.0.1:{port} closed the connection: {reason}"


def test_sub_comes_back_to_a_broker_that_was_stopped(free_port: int) -> None:
    suback = b"\x90\x04\x00\x01\x00\x00"
    with fake_broker(CONNACK5_OK, suback + b"\xe0\x02\x8b\x00", port=free_port):
        process = subprocess.Popen(
            command("sub", "-p", str(free_port), "-t", "a", "-V", "5", "-C", "1"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        reason = "the broker is shutting down (0x8B)"
        closed = f"foldmq: 127.0.0.1:{free_port} closed the connection: {reason}, trying again"
        assert process.stderr.readline().decode() == closed + "\n"
    message = b"\x30\x05\x00\x01a\x00x"
    again = b"\x90\x04\x00\x02\x00\x00"
    with fake_broker(CONNACK5_OK, again + message, port=free_port):
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, b"x\n", b"")


def test_pub_keeps_to_the_receive_maximum_of_the_broker() -> None:
    """The broker answers what it reads at once with one PUBACK: two messages would hang."""
    answers = (b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 6))
    with fake_broker(b"\x20\x06\x00\x00\x03\x21\x00\x01", *answers) as port:
        lines = b"1\n2\n3\n4\n5\n"
        result = foldmq("pub", "-p", str(port), "-t", "a", "-lV5", "-q1", stdin=lines)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(("most", "said"), [(0, "allows none"), (2, "allows 1 to 2")])
def test_a_topic_alias_above_the_maximum_is_not_sent(most: int, said: str) -> None:
    properties = b"\x03\x22\x00" + bytes([most]) if most else b"\x00"
    with fake_broker(bytes([0x20, 2 + len(properties), 0, 0]) + properties) as port:
        result = foldmq("pub", "-p", str(port), "-t", "a", "-n", "--topic-alias", "3")
    assert refused(result, 2) == f"--topic-alias 3: 127.0.0.1:{port} {said}"


def test_properties_from_pub_to_sub(mosquitto: int) -> None:
    port = str(mosquitto)
    pairs = [["b", "1"], ["a", "2"], ["b", "3=x"]]
    # Who starts earlier is also sent what those that start later wait for.
    users = [word for name, value in pairs for word in ("--user-property", f"{name}={value}")]
    properties = [
        *("--message-expiry", "5m", "--content-type", "text/plain", "--response-topic", "r"),
        *("--correlation-data", "c 1", "--utf8"),
    ]
    reader = subscribed(
        mosquitto, "-t", "a/#", "--subscription-identifier", "7", "-C", "6", "--json"
    )
    plain = subscribed(mosquitto, "-t", "a/#", "-C", "5", "--json")
    words = "%t|%p|%l|%q|%r|%C|%D|%F|%P|%R|%S|%%\\t."
    lines = subscribed(mosquitto, "-V", "5", "-t", "a/#", "-C", "4", "-F", f"{words}ready")
    sent = foldmq("pub", "-p", port, "-t", "a/b", "-m", "ä", *properties, *users)
    assert (sent.returncode, sent.stderr) == (0, b"")
    sent = foldmq("pub", "-p", port, "-t", "a/c", "-l", "--topic-alias", "2", stdin=b"1\n2\n")
    assert (sent.returncode, sent.stderr) == (0, b"")
    _, _, first, *rest = map(json.loads, reader.communicate(timeout=30)[0].splitlines())
    expiry = first["properties"].pop("message_expiry")
    assert 200 < expiry <= 300
    assert first == {
        "topic": "a/b",
        "qos": 0,
        "retain": False,
        "payload": "ä",
        "properties": {
            "payload_format": 1,
            "content_type": "text/plain",
            "response_topic": "r",
            "correlation_data": "c 1",
            "user_properties": pairs,
            "subscription_identifiers": [7],
        },
    }
    assert [(one["topic"], one["payload"]) for one in rest] == [("a/c", "1"), ("a/c", "2")]
    assert all("properties" not in json.loads(one) for one in plain.communicate()[0].splitlines())
    shown = lines.communicate(timeout=30)[0].decode().splitlines()
    assert shown[0] == "a/b|ä|2|0|0|text/plain|c 1|1|b:1 a:2 b:3=x|r||%\t.ready"
    assert shown[1] == "a/c|1|1|0|0|||||||%\t.ready"


def test_a_session_that_expires_and_one_that_is_kept(mosquitto: int) -> None:
    port = str(mosquitto)
    for name, expiry in (("kept", ["-V", "5", "-c"]), ("gone", ["-c", "-x", "0"])):
        session = ["sub", "-p", port, "-t", "k", "-q", "1", "-i", name, *expiry]
        assert foldmq(*session, "-E").returncode == 0
        foldmq("pub", "-p", port, "-t", "k", "-q", "1", "-m", name)
        found = foldmq(*session, "-C", "1", "-W", "1")
        assert (found.returncode, found.stdout) == ((0, b"kept\n") if name == "kept" else (27, b""))


def test_a_will_with_properties(mosquitto: int) -> None:
    watcher = subscribed(mosquitto, "-t", "w", "-V", "5", "-C", "3", "--json")
    will = ["--will-topic", "w", "--will-payload", "gone", "--will-qos", "1", "--will-delay", "1s"]
    dying = subscribed(mosquitto, *will, "--will-property", "a=b", "--will-content-type", "t")
    dying.kill()
    dying.communicate()
    _, found = map(json.loads, watcher.communicate(timeout=30)[0].splitlines())
    assert (found["payload"], found["qos"]) == ("gone", 0)
    assert found["properties"] == {"content_type": "t", "user_properties": [["a", "b"]]}


def test_connection_lost_before_the_acknowledgement() -> None:
    with fake_broker(CONNACK_OK, b"") as port:
        result = foldmq("pub", "-p", str(port), "-t", "a", "-m", "x", "-q", "1")
    expected = f"connection to 127.0.0.1:{port} lost; messages not acknowledged: 1"
    assert refused(result, 1) == expected


def test_target_from_url() -> None:
    target = connection.target_of(BrokerFlags("ignored", 1, url="mqtt://ann:p%40ss@[::1]:1884"))
    assert target == connection.Target(Address("::1", 1884), "ann", "p@ss")
    target = connection.target_of(
        BrokerFlags("ignored", 1, username="ann", password="pass", url="mqtt://localhost")
    )
    assert target == connection.Target(Address("localhost", 1883), "ann", "pass")


@pytest.mark.parametrize("url", ["mqtts://ann:sesame@[::1", "mqtt://ann:sesame@[x]:1", "mqtt://"])
def test_a_url_that_is_none_is_not_shown(url: str) -> None:
    with pytest.raises(connection.BadArgumentError, match="--url must be") as raised:
        connection.target_of(BrokerFlags("ignored", 1, url=url))
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize("where", [("a..b", 1883), ("x" * 64, 1883), ("127.0.0.1", 0)])
def test_an_invalid_host_or_port_is_one_line(where: tuple[str, int]) -> None:
    target = connection.target_of(BrokerFlags(*where))
    made = connection.new_client(target, SESSION)
    with pytest.raises(connection.BadArgumentError, match="is not a valid host and port"):
        connection.connect(made, target, SESSION)


def test_a_terminal_is_not_driven_by_a_payload() -> None:
    message = mqtt.MQTTMessage(topic=b"a/\x1b")
    message.payload = b"two\nlines\x1b[2J\xff"
    assert message_text.render(message, "payload", terminal=False) == b"two\nlines\x1b[2J\xff"
    assert message_text.render(message, "payload", terminal=True) == b"two\nlines\\u001b[2J\\\\xff"
    assert message_text.render(message, "verbose", terminal=True).startswith(b"a/\\u001b two\n")
