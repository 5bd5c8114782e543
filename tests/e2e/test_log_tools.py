"""The log tools as a user runs them, over a broker with known traffic."""

import contextlib
import json
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker, environment, foldmq, free_port, nats_server
from harness.fixtures import Clients

from e2e.log_scenarios import events, serving
from e2e.mqtt5_peers import PahoPeer
from e2e.tools import HOSTILE_ID, HOSTILE_TOPIC, flip, refused, run


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("tools")) as (broker, _):
        yield broker


@pytest.fixture
def data(running: Broker) -> tuple[str, str]:
    return "--data-dir", str(running.data_dir)


def position_of(data: tuple[str, str], number: int, topic: str = "hall/door") -> str:
    """The position of a message: the `number`th one published on a topic."""
    found = [
        message["position"]
        for event in events(data, "--type", "MessagePublished")
        for message in event["messages"]
        if message["topic"] == topic
    ]
    return str(found[number])


# ------------------------------------------------------------------------------------- log


def test_log_shows_the_events(data: tuple[str, str]) -> None:
    ran = run("log", *data)
    assert len(ran.lines) == len(events(data))
    door = position_of(data, 0)
    for pattern in (
        r"-          broker started, foldmq \d",
        r"archive    connected from 127\.0\.0\.1:\d+: new session$",
        r"archive    subscribed hall/# QoS 2$",
        r"screen     subscribed hall/\+ QoS 2, lamp QoS 0$",
        r"sensor     left a will for wills/sensor QoS 1, 4 B$",
        r"sensor     published hall/door QoS 1, 4 B, packet 1$",
        rf"screen     sent hall/door \({door}\) QoS 1, packet 1, for hall/\+$",
        rf"archive    queued hall/door \({door}\) QoS 1, 4 B, for hall/#$",
        r"screen     acknowledged packet 1 \(PUBACK\)$",
        r"sensor     released hall/window \(\d+\.\d+\), packet 2 \(PUBREL\)$",
        r"screen     completed packet 2 \(PUBCOMP\)$",
        r"archive    dropped hall/door \(\d+\.\d+\) for hall/#: the queue had as many messages",
        r"sensor     published lamp QoS 1 retained, 2 B, packet 5$",
    ):
        line = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +\d+\.\d+  " + pattern
        assert re.search(line, ran.out, re.MULTILINE), pattern
    assert "open" not in ran.out  # payloads are shown on request
    assert '4 B, packet 1: "open"' in run("log", *data, "--payload", "--session", "sensor").out


def test_log_filters(data: tuple[str, str]) -> None:
    everything = events(data)
    of_screen = events(data, "--session", "screen")
    assert of_screen == [one for one in everything if one.get("session") == "screen"]
    assert {one["type"] for one in of_screen} >= {"SessionOpened", "Delivered", "Acked"}
    chosen = events(data, "--type", "acked", "--type", "Queued")
    assert chosen == [one for one in everything if one["type"] in ("Acked", "Queued")]
    of_window = events(data, "--topic", "+/window")
    assert [one["type"] for one in of_window if one["session"] == "screen"] == ["Delivered"]
    assert [one["type"] for one in of_window if one["session"] == "sensor"] == [
        "MessagePublished",
        "Released",
    ]
    assert events(data, "--topic", "nothing/here") == []


def test_log_bounds(data: tuple[str, str]) -> None:
    everything = events(data)
    assert events(data, "-n", "4") == everything[-4:]
    assert (
        events(data, "-n", "2", "--session", "archive")
        == [one for one in everything if one.get("session") == "archive"][-2:]
    )
    fifth = everything[4]["position"]
    assert events(data, "--from", fifth) == everything[4:]
    assert events(data, "--from", fifth, "-n", "2") == everything[4:6]
    assert events(data, "--to", fifth) == everything[:5]
    middle = everything[len(everything) // 2]["time"]
    assert events(data, "--from", middle) == [one for one in everything if one["time"] >= middle]
    assert events(data, "--to", middle) == [one for one in everything if one["time"] <= middle]
    local = run("log", *data, "--from", fifth, "-n", "1").out[:23]
    since = events(data, "--from", local)
    assert since == [one for one in everything if one["time"] >= everything[4]["time"]]
    assert events(data, "--from", "1h ago") == everything
    assert events(data, "--to", "1h ago") == []


def test_log_escapes_text_from_clients(data: tuple[str, str]) -> None:
    ran = run("log", *data, "--payload", "-n", "50")
    (line,) = [line for line in ran.lines if "published" in line and "il/" in line]
    assert '"evil\\u001b[2J\\n\\u009b\\u007f id" published' in line
    assert '"ev\\u001b[31mil/\\u202e\\r\\n\\"t\\""' in line
    assert line.endswith('"\\u001b]0;x\\u0007\\xff\\n\\""')
    (event,) = events(data, "--session", HOSTILE_ID, "--type", "MessagePublished", "--payload")
    assert event["messages"][0]["topic"] == HOSTILE_TOPIC
    assert event["messages"][0]["payload_base64"] == "G10wO3gH/woi"


def test_log_follows(running: Broker, data: tuple[str, str]) -> None:
    command = [foldmq(), "log", *data, "-f", "-n", "1", "--topic", "followed", "--payload"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process,
        contextlib.closing(Clients("127.0.0.1", running.port)) as clients,
    ):
        assert process.stdout is not None
        client = clients.connect("follower")
        # published until it is seen: the start of following is unknown
        while not _readable(process.stdout.fileno()):
            client.publish("followed", b"now", 1)
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert re.search(r'follower   published followed QoS 1, 3 B, packet \d+: "now"$', line)


def _readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0.2)[0])


# ---------------------------------------------------------------------------------- verify


def test_verify_an_intact_log(data: tuple[str, str]) -> None:
    ran = run("log", "verify", *data)
    assert re.fullmatch(r"intact: \d+ records, \d+ entries, from [\d :.-]+ to [\d :.-]+\n", ran.out)
    assert run("log", *data, "verify").out.startswith("intact: ")
    (found,) = run("log", "verify", *data, "--json").objects
    assert found["problems"] == 0
    assert found["records"] == int(events(data)[-1]["position"].split(".")[0])


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    with Broker(tmp_path, forked=True) as broker:
        client = Clients("127.0.0.1", broker.port).connect("c")
        client.publish("t", b"needle-in-the-log", 1)
        client.publish("t", b"after", 1)
        where = position_of(("--data-dir", str(broker.data_dir)), 0, "t").split(".")[0]
        client.disconnect()
        broker.stop()
    flip(broker, b"needle-in-the-log")
    data = ("--data-dir", str(broker.data_dir))
    ran = run("log", "verify", *data, code=1)
    assert re.search(rf"^record {where} ", ran.out, re.MULTILINE)
    assert re.match(r"damaged: [1-9]\d* problems? in the log of ", ran.lines[-1])
    for command in (["log"], ["replay"], ["why", "--client", "c", "--topic", "t"]):
        ran = run(*command, *data, code=65)
        assert f"the log is damaged: record {where} " in ran.err


# ---------------------------------------------------------------------------------- replay


def test_replay_sums_up(data: tuple[str, str]) -> None:
    out = run("replay", *data).out
    assert re.match(r"state as of record \d+, \d{4}-", out)
    assert re.search(r"^  sessions +\d: \d connected, \d offline$", out, re.MULTILINE)
    assert re.search(r"^  in flight +2 messages$", out, re.MULTILINE)
    assert re.search(r"^  queued +3 messages, 12 B$", out, re.MULTILINE)
    assert re.search(r"^  retained +2 topics, 11 B$", out, re.MULTILINE)
    assert re.search(r"^  archive +offline +1 +0 +3$", out, re.MULTILINE)
    assert re.search(r"^  screen +connected +2 +2 +0$", out, re.MULTILINE)
    kinds = [one["kind"] for one in run("replay", *data, "--json").objects]
    assert kinds[0] == "state"
    assert kinds.count("retained") == 2


def test_replay_of_one_session(data: tuple[str, str]) -> None:
    out = run("replay", *data, "--session", "screen").out
    third, fourth = position_of(data, 1), position_of(data, 2)
    assert "  connected (connection 1)\n  persistent session\n" in out
    assert "    hall/+  QoS 2, 2 in flight\n    lamp  QoS 0\n" in out
    assert re.search(rf"packet 3 +message {third} hall/door, 4 B, QoS 1, .+ sent .+ ago", out)
    assert re.search(rf"packet 4 +message {fourth} hall/door, 6 B, QoS 2, .+ sent .+ ago", out)
    out = run("replay", *data, "--session", "archive").out
    assert re.search(r"^  offline since [\d :.-]+ \(.+\)$", out, re.MULTILINE)
    assert "queued: 3 messages, 12 B; the oldest: message " in out
    assert f"message {position_of(data, 0)} hall/door, 4 B" in out
    out = run("replay", *data, "--session", "sensor").out
    assert re.search(r"packet 77 +message \S+ hall/door, 10 B", out)
    assert "  will wills/sensor QoS 1 (position " in out


def test_replay_as_json(data: tuple[str, str]) -> None:
    (screen,) = run("replay", *data, "--session", "screen", "--json").objects
    assert [row["packet_id"] for row in screen["in_flight"]["rows"]] == [3]
    assert [row["packet_id"] for row in screen["releasing"]["rows"]] == [4]
    assert screen["in_flight"]["rows"][0]["topic"] == "hall/door"
    (lamp,) = run("replay", *data, "--topic", "lamp", "--json").objects
    assert (lamp["payload"], lamp["qos"]) == ("on", 1)
    assert lamp["position"] == position_of(data, 0, "lamp")
    assert '"on"' in run("replay", *data, "--topic", "#").out


def test_replay_as_of_a_moment(data: tuple[str, str]) -> None:
    first = position_of(data, 0)
    deliveries = events(data, "--session", "screen", "--type", "Delivered")
    before = run("replay", *data, "--at", first, "--session", "screen", "--json").objects[0]
    assert (before["in_flight"]["rows"], before["as_of"]) == ([], first)
    at = deliveries[0]["position"]
    then = run("replay", *data, "--at", at, "--session", "screen", "--json").objects[0]
    assert [row["packet_id"] for row in then["in_flight"]["rows"]] == [1]
    timed = run("replay", *data, "--at", events(data)[-1]["time"], "--json").objects[0]
    assert timed["in_flight"] == 2
    assert run("replay", *data, "--at", "1d ago", "--json").objects[0]["sessions"] == 0


# ------------------------------------------------------------------------------------ diff


def test_diff_of_two_moments(data: tuple[str, str]) -> None:
    opened = events(data, "--session", "sensor", "--type", "SessionOpened")[0]["position"]
    before = str(int(opened.split(".")[0]) - 1)
    ran = run("diff", *data, before, "now")
    assert "+ session sensor\n    connected\n" in ran.out
    assert "~ session screen\n    in flight 0 -> 2 messages (2 sent)\n" in ran.out
    assert "~ session archive\n    queued 0 -> 3 messages, 0 B -> 12 B\n" in ran.out
    assert "+ retained lamp, 2 B\n" in ran.out
    (found,) = run("diff", *data, before, "now", "--json").objects
    assert "sensor" in found["sessions_added"]
    assert found["sessions_changed"]["screen"]["to"]["in_flight"] == [3, 4]
    assert "lamp" in found["retained"]["added"]
    assert "no differences" in run("diff", *data, "3", "3").out
    only = run("diff", *data, "0", before, "--session", "screen").out
    assert "    + subscription hall/+ QoS 2\n" in only
    assert "archive" not in only


def test_a_shared_subscription_with_its_members(running: Broker, data: tuple[str, str]) -> None:
    topic_filter = "$share/g/pool/#"
    member = PahoPeer({"tcp": running.port}, "tcp", "member", clean=False, expiry=60)
    assert member.subscribe(topic_filter, 1) == 1
    member.leave()
    ran = run("replay", *data, "--session", topic_filter)
    assert "  shared subscription of 1 member\n    member  offline, QoS 1\n" in ran.out
    (found,) = run("replay", *data, "--session", topic_filter, "--json").objects
    member_of = [(one["session"], one["connected"], one["qos"]) for one in found["members"]["rows"]]
    assert member_of == [("member", False, 1)]


# ------------------------------------------------------------------------------------- why


def test_why_of_an_acknowledged_message(data: tuple[str, str]) -> None:
    first = position_of(data, 0)
    out = run("why", *data, "--client", "screen", "--position", first).out
    assert out.startswith(f"message {first} on hall/door, QoS 1, 4 B\n")
    assert f"{first}  published by sensor as packet 1\n" in out
    assert "archive (queued)" in out
    assert "screen (acknowledged)" in out
    assert "  for screen, subscription hall/+ at QoS 1: acknowledged\n" in out
    assert re.search(r"sent as packet 1$", out, re.MULTILINE)
    assert re.search(r"acknowledged: PUBACK of packet 1$", out, re.MULTILINE)


def test_why_of_all_receivers(data: tuple[str, str]) -> None:
    delivery = events(data, "--session", "screen", "--type", "Delivered")[0]
    first = delivery["messages"][0]["position"]
    out = run("why", *data, "--topic", "hall/door", "--at", first).out
    assert out == run("why", *data, "--position", first).out
    (found,) = run("why", *data, "--topic", "hall/#", "--json").objects
    assert found["client"] is None


def test_why_by_the_position_of_a_delivery(data: tuple[str, str]) -> None:
    delivery = events(data, "--session", "screen", "--type", "Delivered")[0]
    out = run("why", *data, "--position", delivery["position"]).out
    assert out.startswith(f"message {delivery['messages'][0]['position']} on hall/door")
    assert "for archive, subscription hall/# at QoS 1: still queued" in out


def test_why_of_qos_2(data: tuple[str, str]) -> None:
    found = run(
        "why", *data, "--client", "screen", "--topic", "hall/#", "--last", "4", "--json"
    ).objects
    window, third, fourth, fifth = found
    steps = [step["what"] for copy in window["copies"] for step in copy["steps"]]
    assert [step["what"] for step in window["steps"]] == ["released"]
    assert sorted(steps) == ["completed", "delivered", "queued", "received"]
    fates = [{one["session"]: one["fate"] for one in story["copies"]} for story in found]
    assert fates[1:] == [
        {"archive": "queued", "screen": "in_flight"},
        {"archive": "dropped", "screen": "releasing"},
        {},
    ]
    assert (third["qos"], fourth["qos"]) == (1, 2)
    assert (fifth["effective"], fifth["packet_id"]) == (False, 77)
    out = run("why", *data, "--client", "archive", "--topic", "hall/#", "--last", "2").out
    assert "for archive, subscription hall/#: dropped: the queue was full: 3 messages waited" in out
    assert "waiting for PUBREL from its publisher" in out


def test_why_explains_a_missing_message(data: tuple[str, str]) -> None:
    out = run("why", *data, "--client", "archive", "--topic", "lamp").out
    assert "  archive was offline and had no matching subscription\n" in out
    out = run("why", *data, "--client", "screen", "--topic", "lamp").out
    assert "screen was subscribed (lamp QoS 0) and connected: sent at QoS 0" in out
    out = run("why", *data, "--client", "nobody", "--topic", "lamp").out
    assert "  nobody had no session at that time: the log does not know this client\n" in out


# --------------------------------------------------------------------------------- sources


def test_the_log_of_a_stopped_broker(tmp_path: Path) -> None:
    with Broker(tmp_path, forked=True) as broker:
        client = Clients("127.0.0.1", broker.port).connect("c", clean=False)
        client.publish("t", b"x", 1, retain=True)
        data = ("--data-dir", str(broker.data_dir))
        online = run("log", *data, "--json").objects
        assert run("log", *data, "-v", "-n", "1").err.endswith(" (running)\n")
        broker.kill()
        said = run("log", *data, "-v", "-n", "1").err
        assert "(not running: its NATS server is started to read)\n" in said
        assert run("log", *data, "--json").objects == online
        assert run("log", "verify", *data).out.startswith("intact: ")
        assert "retained       1 topic, 1 B" in run("replay", *data).out
        assert "t  QoS 1" in run("replay", *data, "--topic", "t").out
        assert "acknowledged" not in run("why", *data, "--position", position_of(data, 0, "t")).out
        assert "cannot follow the log" in refused("log", *data, "-f", code=2)
        broker.start()
        assert client.client_id in run("replay", *data).out
        broker.stop()


@pytest.fixture
def external(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    config = tmp_path / "nats.conf"
    store = tmp_path / "store"
    config.write_text(
        json.dumps(
            {
                "host": "127.0.0.1",
                "port": port,
                "max_payload": 33554432,
                "authorization": {"user": "tools", "password": "secret"},
                "jetstream": {"store_dir": str(store)},
            }
        )
    )
    server = subprocess.Popen(
        [nats_server(), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_logs_on_a_foreign_nats(tmp_path: Path, external: str) -> None:
    access = ("--nats-url", external, "--nats-user", "tools", "--nats-password", "secret")
    brokers = []
    assert "there is no log of foldmq on NATS" in refused("log", *access, code=66)
    try:
        for number in range(2):
            directory = tmp_path / f"b{number}"
            directory.mkdir()
            broker = Broker(directory, args=access, forked=True)
            brokers.append(broker)
            broker.start()
            client = Clients("127.0.0.1", broker.port).connect(f"client{number}")
            client.publish("t", b"x", 1)
            client.disconnect()
            if not number:
                assert "client0" in run("log", *access).out  # the only one
        refusal = refused("log", *access, code=2)
        nodes = [(broker.data_dir / "node").read_text().strip() for broker in brokers]
        assert all(node in refusal for node in nodes)
        assert "client1" in run("log", *access, "--node", nodes[1]).out
        assert "client1" not in run("log", *access, "--stream", f"FOLDMQ_LOG_{nodes[0]}").out
        by_directory = run("log", *access, "--data-dir", str(brokers[1].data_dir), "-v")
        assert "client1" in by_directory.out
        assert f"FOLDMQ_LOG_{nodes[1]}" in by_directory.err
        assert run("log", "verify", *access, "--node", nodes[0]).out.startswith("intact: ")
        assert refused("replay", *access, "--node", "other", code=66)
        assert "contains no log" in refused(
            "replay", "--data-dir", str(brokers[0].data_dir), code=66
        )
        assert "Authorization" not in refused("log", *access[:4], "--nats-password", "no", code=69)
    finally:
        for broker in brokers:
            broker.clean_up()


# ---------------------------------------------------------------------------------- errors


def test_errors_are_one_line(data: tuple[str, str], tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert refused("log", "--data-dir", missing, code=66) == (
        f"data directory {missing}: does not exist"
    )
    assert not (tmp_path / "missing").exists()
    assert "contains no log" in refused("log", "verify", "--data-dir", str(tmp_path), code=66)
    assert list(tmp_path.iterdir()) == []
    url = f"nats://127.0.0.1:{free_port()}"
    assert "cannot connect to NATS" in refused("replay", "--nats-url", url, code=69)
    said = refused("log", *data, "--from", "tomorrow-ish", code=2)
    assert 'not a point in time: "tomorrow-ish"' in said
    assert "beyond the end of the log" in refused("replay", *data, "--at", "999999", code=2)
    for start, end in (("3", "2.1"), ("now", "1h ago")):
        asked = ("--from", start, "--to", end)
        assert "--from is later than --to" in refused("log", *data, *asked, code=2)
    assert "beyond the end of the log" in refused("diff", *data, "1", "999999", code=2)
    assert "beyond the log" in refused("why", *data, "--position", "999999", code=2)
    assert "is not a message but" in refused("why", *data, "--position", "1.0", code=2)
    assert "give the earlier point first" in refused("diff", *data, "5", "2", code=2)
    assert 'did you mean "Delivered"?' in refused("log", *data, "--type", "deliverd", code=2)
    assert "[MQTT-4.7.1-2]" in refused("log", *data, "--topic", "a#", code=2)
    assert "no session who as of" in refused("replay", *data, "--session", "who", code=1)
    assert "the log records no message on x" in refused(
        "why", *data, "--client", "screen", "--topic", "x", code=1
    )
    assert refused("why", *data, "--client", "screen", "--topic", "hall/doors", code=1).endswith(
        "there are messages on hall/door"
    )
    assert "give either" in refused("why", *data, "--client", "x", code=2)
    assert "nats_user also needs nats_url" in refused("log", *data, "--nats-user", "x", code=78)


def test_nothing_is_written(running: Broker, data: tuple[str, str]) -> None:
    mark = (running.data_dir / "node").read_bytes()
    last = events(data, "-n", "1")
    for command in (["log"], ["log", "verify"], ["replay"], ["diff", "1", "now"]):
        run(*command, *data)
    assert events(data, "-n", "1") == last
    assert (running.data_dir / "node").read_bytes() == mark
