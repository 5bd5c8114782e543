"""``foldmq serve --processes N``: one port, a log for each process, kills under load."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from harness import drill as drills
from harness import forkserver
from harness import packets as p
from harness.broker import Broker, environment, wait_until_gone
from harness.brokerprocesses import TWO, client_of, processes
from harness.drill import ROUNDS, SEED, Drill, Publisher, Subscriber
from harness.drillaccount import Account
from harness.packets import Publish, Suback
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

from e2e.listening import Client, Place
from eventstore.partitions import partition_names, partition_of


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("steady"), args=TWO, forked=True) as made:
        yield made


@pytest.fixture
def steady(_shared: Broker) -> Iterator[Broker]:
    """A broker of two processes without sessions, for tests that leave it as it was."""
    yield _shared

    def purged() -> bool:
        run(_shared, "sessions", "purge", "--match", "*", "--yes")
        return run(_shared, "sessions", "ls") == (0, "")

    until(purged, "no sessions")


@pytest.fixture
def make_processes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Broker]]:
    """Make brokers; those of `make drills` are started as a user starts them, others are forked."""
    forked = ROUNDS < 3 or request.node.get_closest_marker("drill") is None
    made: list[Broker] = []

    def make(*args: str) -> Broker:
        place = tmp_path / "broker"
        place.mkdir(exist_ok=True)
        made.append(Broker(place, args=args, forked=forked))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
        print(f"broker in {one.directory}:\n{one.log[-4000:]}")  # shown if the test failed


def _share(home: int) -> str:
    """Return a shared subscription whose home is a process."""
    names = (f"$share/g{at}/a/+" for at in range(100))
    return next(name for name in names if partition_of(name, 2) == home)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_of_different_processes_exchange_messages(steady: Broker, qos: int) -> None:
    broker = steady
    with RawClient(broker.port) as reader, RawClient(broker.port) as sender:
        assert reader.connect(client_of(0, "reader")).code == 0
        reader.send(p.subscribe(1, ("a/+", qos)))
        assert reader.receive() == Suback(1, (qos,))
        assert sender.connect(client_of(1, "sender")).code == 0
        for number in range(50):
            sender.send(p.publish("a/b", b"%d" % number, qos, number + 1 if qos else None))
            if qos == 2:
                sender.receive()
                sender.send(p.pubrel(number + 1))
        got: list[bytes] = []
        while len(got) < 50:
            received = reader.receive(20)
            if isinstance(received, Publish):
                got.append(received.payload)
                if received.qos and received.packet_id:
                    answer = p.puback if received.qos == 1 else p.pubrec
                    reader.send(answer(received.packet_id))
            else:
                reader.send(p.pubcomp(received.packet_id))
        assert got == [b"%d" % number for number in range(50)]


@pytest.mark.drill
@pytest.mark.timeout(200 + 40 * ROUNDS)
def test_nothing_is_lost_when_a_process_is_killed(
    make_processes: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "SETTLE", 120.0)  # what one process queues, two clients publish
    broker = make_processes(*TWO)
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def kill() -> None:
        before = processes(broker)
        victim = drill.random.choice(sorted(before))
        drill.notes.append(f"process {victim} killed")
        os.kill(before[victim], signal.SIGKILL)
        assert wait_until_gone(before[victim])
        until(lambda: len(processes(broker)) == 2, 30)
        other = 1 - victim
        assert processes(broker)[other] == before[other], "the other process ended as well"

    for _ in range(ROUNDS):
        drill.strike(kill)
    drill.judge()
    broker.stop()


def test_all_processes_end_with_the_first_one_and_their_number_stays(
    make_processes: Callable[..., Broker],
) -> None:
    broker = make_processes(*TWO)
    broker.start()
    running = processes(broker)
    assert len(running) == 2
    broker.stop()
    assert all(map(wait_until_gone, running.values()))
    for count in ("3", "1"):
        other = make_processes("--processes", count)
        assert "has the logs of 2 processes" in other.refused(78)


def test_sessions_and_retained_messages_are_there_after_a_restart(
    make_processes: Callable[..., Broker],
) -> None:
    broker = make_processes(*TWO)
    broker.start()
    names = [client_of(number, "keeper") for number in range(2)]
    for name in names:
        with RawClient(broker.port) as client:
            client.connect(name, clean=False)
            client.send(p.subscribe(1, ("q/#", 1)))
            client.receive()
            client.send(p.publish(f"r/{name}", b"kept", 1, 5, retain=True))
            client.receive()
            client.disconnect()
    with RawClient(broker.port) as sender:
        sender.connect(client_of(0, "sender"))
        sender.send(p.publish("q/a", b"waits", 1, 1))
        sender.receive()
    broker.restart(kill=True)
    for name in names:
        with RawClient(broker.port) as client:
            assert client.connect(name, clean=False).session_present
            found = client.receive(20)
            assert isinstance(found, Publish)
            assert found.payload == b"waits"
            client.send(p.puback(found.packet_id or 0), p.subscribe(2, ("r/#", 1)))
            kept = set()
            while len(kept) < 2:
                one = client.receive(20)
                if isinstance(one, Publish):
                    kept.add(one.topic)
            assert kept == {f"r/{other}" for other in names}
    broker.stop()


@pytest.mark.drill
@pytest.mark.timeout(400)
def test_a_shared_subscription_loses_nothing_when_a_process_is_killed(
    make_processes: Callable[..., Broker],
) -> None:
    broker = make_processes(*TWO)
    broker.start()
    account, topics = Account(), [f"t/{number}" for number in range(7)]
    members = [
        Subscriber(account, broker.port, client_of(at % 2, f"member{at}-"), "$share/g/t/", 2)
        for at in range(4)
    ]
    for member in members:
        member.start()
    until(lambda: all(member.ready.is_set() for member in members), "all join", 60)
    senders = [
        Publisher(account, broker.port, client_of(at % 2, f"sender{at}-"), topics, seed=at)
        for at in range(4)
    ]
    for sender in senders:
        sender.start()
    victims = (0, 1, 0) if ROUNDS > 2 else (0, 1)
    for victim in victims:
        before = account.totals()["acknowledged"]
        until(
            lambda before=before: account.totals()["acknowledged"] > before + 100,  # type: ignore[misc]
            "load",
            60,
        )
        killed = processes(broker)[victim]
        os.kill(killed, signal.SIGKILL)
        assert wait_until_gone(killed)
        until(lambda: len(processes(broker)) == 2, "it is back", 60)
    before = account.totals()["acknowledged"]
    until(lambda: account.totals()["acknowledged"] > before + 100, "load", 60)
    for sender in senders:
        sender.finish(60)
    until(lambda: not account.shared()[0], "all arrives", 120)
    time.sleep(1)  # what would come twice has come
    for member in members:
        member.finish(20)
    assert account.shared() == ([], [])
    broker.stop()
    code, said = run(broker, "log", "verify")
    assert code == 0, said


def test_clients_over_tls_and_websocket_survive_a_kill_of_their_process(tmp_path: Path) -> None:
    """When the broker stops, MQTT 5 clients get DISCONNECT."""
    place = Place(tmp_path, 2)
    place.start()
    try:
        here, there = client_of(0, "here"), client_of(1, "there")
        options = {"clean_session": False}
        with Client(place, "tls", there) as stays:
            stays.subscribe("to/there", 2)
            with Client(place, "wss", here, **options) as leaves:
                leaves.subscribe("to/here", 2)
                stays.publish("to/here", b"1", 2)
                leaves.expect("to/here", b"1", 2)
                leaves.publish("to/there", b"2", 2)
                stays.expect("to/there", b"2", 2)
                victim = processes(place.broker)[0]
                os.kill(victim, signal.SIGKILL)
                leaves.lost.get(timeout=30)
            stays.publish("to/here", b"3", 2)  # perhaps before the process is back
            # A client waits for its process no longer than connect_timeout, and would try again.
            until(lambda: processes(place.broker).get(0, victim) != victim, "it is back", 60)
            with Client(place, "wss", here, **options) as back:
                back.expect("to/here", b"3", 2)
                back.publish("to/there", b"4", 2)
                stays.expect("to/there", b"4", 2)
            assert stays.lost.empty()
            assert processes(place.broker)[0] != victim
        node = Path(place.broker.data_dir, "node").read_text().strip()
        code, said = run(place.broker, "log", "--node", f"{node}-p1", "--type", "SessionOpened")
        assert (code, there in said, " via " in said) == (0, True, False), said
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(Client(place, "tls", name, protocol=paho.MQTTv5))
                for name in (here, there)
            ]
            place.broker.stop()
            reasons = [client.lost.get(timeout=30) for client in clients]
        assert [str(reason) for reason in reasons] == ["Server shutting down"] * 2
        code, said = run(place.broker, "log", "verify")
        assert code == 0, said
    finally:
        place.broker.clean_up()
        print(place.broker.log[-4000:])  # shown if the test failed


def test_proxy_protocol_is_switched_on_and_off_by_a_reload(tmp_path: Path) -> None:
    broker = Broker(tmp_path, args=TWO, forked=True)

    def listens(*, proxied: bool) -> str:
        return f"""
log_format = "json"
[[listen]]
address = "127.0.0.1:{broker.port}"
proxy_protocol = {str(proxied).lower()}
allow_anonymous = true
"""

    broker.configure(listens(proxied=False))
    broker.start()
    header = b"PROXY TCP4 192.0.2.77 198.51.100.1 4321 1883\r\n"

    def admitted(name: str, *before: bytes) -> bool:
        with RawClient(broker.port) as client:
            client.send(*before, p.connect(name))
            try:
                return client.receive(20) == p.Connack(0)
            except (ConnectionClosedError, OSError):
                return False

    try:
        names = [client_of(number, "client") for number in range(2)]
        for reloads, proxied in enumerate((False, True, False)):
            if reloads:
                broker.configure(listens(proxied=proxied))
                broker.hangup()
                # By both processes and the main one.
                wanted = 3 * reloads
                until(lambda most=wanted: len(broker.told("settings reloaded")) == most, "reload")  # type: ignore[misc]
            for name in names:
                assert admitted(name, *([header] if proxied else []))
                assert not admitted(name, *([] if proxied else [header]))
        broker.stop()
    finally:
        broker.clean_up()
        print(broker.log[-4000:])  # shown if the test failed


def run(broker: Broker, *args: str) -> tuple[int, str]:
    """Run a command on the data directory of a broker; return its exit code and output."""
    command = [*args, "--data-dir", str(broker.data_dir)]
    code, out, err = forkserver.run(command, environment(), 120)
    assert b"Traceback" not in err, err.decode()
    return code, (out + err).decode()


def test_commands_follow_messages_from_log_to_log(make_processes: Callable[..., Broker]) -> None:
    broker = make_processes(*TWO)
    broker.start()
    reader, sender = client_of(0, "reader"), client_of(1, "sender")
    with RawClient(broker.port) as one, RawClient(broker.port) as other:
        one.connect(reader, clean=False)
        one.send(p.subscribe(1, ("a/+", 1)))
        one.receive()
        other.connect(sender, clean=False)
        for number, topic in enumerate(("a/taken", "b/unwanted"), 1):
            other.send(p.publish(topic, b"1", 1, number))
            other.receive()
        found = one.receive(20)
        assert isinstance(found, Publish)
        one.send(p.puback(found.packet_id or 0))
        one.disconnect()
    node = Path(broker.data_dir, "node").read_text().strip()

    def check_history() -> None:
        code, said = run(broker, "why", "--topic", "a/taken")
        assert code == 0, said
        assert f"published by {sender} as packet 1" in said
        assert f"for {reader}, subscription " in said
        code, said = run(broker, "why", "--client", reader, "--topic", "a/taken")
        assert code == 0, said
        home, copy = said.split("\n\n")
        assert home.startswith(f"log {node}-p1\n")
        assert f"published by {sender} as packet 1" in home
        assert copy.startswith(f"log {node}-p0\n")
        assert f"for {reader}, subscription a/+ at QoS 1" in copy
        # How far the log has taken the other one is recorded a moment later.
        why = ("why", "--client", reader, "--topic", "b/unwanted")
        missing = f"log {node}-p0, which has the session {reader}, does not have it"
        until(lambda: missing in run(broker, *why)[1])
        assert run(broker, *why)[0] == 0
        code, said = run(broker, "replay", "--session", reader)
        assert (code, "a/+" in said) == (0, True)
        code, said = run(broker, "log", "verify")
        assert code == 0, said
        assert f"log {node}-p0: 1 message of other logs had to be taken, all" in said
        wrong = ("--node", f"{node}-p1")
        code, said = run(broker, "why", "--client", reader, "--topic", "a/taken", *wrong)
        assert code == 2
        assert f"belongs to the log {node}-p0" in said
        code, said = run(broker, "log", "--from", "1")
        assert code == 2
        assert f"or --node, one of {node}-p0, {node}-p1" in said

    check_history()
    code, said = run(broker, "sessions", "show", reader)
    assert (code, "a/+" in said) == (0, True)
    for command in (["actors", "show", "session:1"], ["actors", "tail", "session:1"]):
        code, said = run(broker, *command)
        assert code == 2, said
        assert f"give --node, one of {node}-p0, {node}-p1" in said
    broker.stop()
    check_history()


def test_pseudonyms_are_the_same_in_each_log(make_processes: Callable[..., Broker]) -> None:
    broker = make_processes(*TWO, "--pseudonyms")
    broker.start()
    names = [f"person{number}" for number in range(6)]
    known = {}
    for name in names:
        code, said = run(broker, "pseudonym", name)
        assert code == 0, said
        known[name] = said.strip()
    with contextlib.ExitStack() as stack:
        clients = []
        for name in names:
            client = stack.enter_context(RawClient(broker.port))
            assert client.connect(name, clean=False).code == 0
            client.send(p.subscribe(1, ("a", 1)))
            assert client.receive() == Suback(1, (1,))
            clients.append(client)
        nameless = stack.enter_context(RawClient(broker.port))
        assert nameless.connect("").code == 0
        nameless.send(p.publish("a", b"1", 1, 1))
        for client in clients:
            found = client.receive(20)
            assert isinstance(found, Publish)
            client.send(p.puback(found.packet_id or 0))
            client.disconnect()
    broker.restart(kill=True)
    for name in names:
        with RawClient(broker.port) as client:
            assert client.connect(name, clean=False).session_present
        code, said = run(broker, "sessions", "show", known[name])
        assert (code, "a  QoS 1" in said) == (0, True), said
        code, said = run(broker, "why", "--client", known[name], "--topic", "a")
        assert (code, "acknowledged" in said) == (0, True), said
    logs = partition_names(Path(broker.data_dir, "node").read_text().strip(), 2)
    for number, log in enumerate(logs):
        code, said = run(broker, "log", "--node", log, "--type", "SessionOpened")
        assert code == 0, said
        assert "person" not in said
        opened = {one for one in known.values() if one in said}
        assert opened == {one for one in known.values() if partition_of(one, 2) == number}
    assert "person" not in broker.log
    assert not list(Path(broker.data_dir).glob("p*/pseudonym.key"))
    broker.stop()
    code, said = run(broker, "log", "verify")
    assert code == 0, said


def test_live_commands_are_about_all_processes(steady: Broker) -> None:
    broker = steady
    node = Path(broker.data_dir, "node").read_text().strip()
    logs = [f"{node}-p{number}" for number in range(2)]
    here, there = (client_of(number, "away") for number in range(2))
    online = client_of(1, "online")

    def rows(*command: str) -> list[dict[str, Any]]:
        code, said = run(broker, *command, "--json")
        assert code == 0, said
        return [json.loads(line) for line in said.splitlines()]

    for name in (here, there):
        with RawClient(broker.port) as client:
            client.connect(name, clean=False)
            client.send(p.subscribe(1, ("a/+", 1)))
            client.receive()
            client.disconnect()
    with RawClient(broker.port) as client:
        client.connect(online)
        client.send(p.subscribe(1, ("a/#", 1)))
        client.receive()
        client.send(p.publish("r/1", b"kept", 1, 1, retain=True))
        client.receive()

        def listed() -> set[tuple[str, str]]:
            return {(row["log"], row["session"]) for row in rows("sessions", "ls")}

        assert listed() == {(logs[0], here), (logs[1], there), (logs[1], online)}
        only = rows("sessions", "ls", "--node", logs[0], "--match", "away*")
        assert [row["session"] for row in only] == [here]
        assert {row["log"] for row in rows("actors", "ls", "--type", "broker")} == set(logs)

        code, said = run(broker, "status")
        assert code == 0, said
        assert f"ready: {node}, 2 logs\n" in said
        assert "1 connected, " in said
        assert all(any(line.startswith(log) for line in said.splitlines()) for log in logs)
        (status,) = rows("status")
        assert [one["node"] for one in status["logs"]] == logs
        assert (status["ready"], status["not_answering"]) == (True, [])
        code, said = run(broker, "doctor")
        assert (code, f"{node}, 2 logs" in said) == (0, True), said

        (outcome,) = rows("subscriptions", "--topic", "a/b")
        assert {(row["log"], row["client"], row["why"]) for row in outcome["subscriptions"]} == {
            (logs[0], here, "queued"),
            (logs[1], there, "queued"),
            (logs[1], online, "sent"),
        }
        code, said = run(broker, "doctor", "a/b")
        assert code == 0, said
        assert f"  {here}: queued: offline" in said
        assert f"  {there}: queued: offline" in said
        (kept,) = rows("retained", "ls")
        assert (kept["topic"], kept["log"] in logs) == ("r/1", True)
        code, said = run(broker, "retained", "rm", "r/1", "--yes")
        assert code == 0, said

        def gone() -> bool:
            found = [run(broker, "retained", "ls", "--json", "--node", log) for log in logs]
            return found == [(0, "")] * 2

        until(gone, "the other process has removed it as well", 30)

        code, said = run(broker, "sessions", "kick", here, online, "--yes")
        assert code == 1
        assert re.search(rf"kicked 1 client, recorded at [0-9.]+ of log {logs[1]}\n", said)
        assert f"{here} is not connected" in said
    code, said = run(broker, "sessions", "purge", "--match", "away*", "--yes")
    assert code == 0, said
    assert re.search(
        rf"removed 2 sessions, recorded at [0-9.]+ of log {logs[0]}, [0-9.]+ of log {logs[1]}\n",
        said,
    )
    assert not listed() & {(logs[0], here), (logs[1], there)}


def test_why_follows_a_message_of_a_shared_subscription(
    make_processes: Callable[..., Broker],
) -> None:
    broker = make_processes(*TWO)
    broker.start()
    share, member, sender = _share(0), client_of(1, "member"), client_of(1, "sender")
    node = Path(broker.data_dir, "node").read_text().strip()
    with RawClient(broker.port) as one, RawClient(broker.port) as other:
        one.connect(member, clean=False)
        one.send(p.subscribe(1, (share, 1)))
        assert one.receive(20) == Suback(1, (1,))
        other.connect(sender)
        other.publish("a/b", b"1", 1)
        found = one.receive(20)
        assert isinstance(found, Publish)
        one.acknowledge(found)
        code, said = run(broker, "subscriptions", "--topic", "a/b", "--node", f"{node}-p0")
        assert code == 0, said
        assert share in said
        code, said = run(broker, "sessions", "show", share, "--node", f"{node}-p0")
        assert code == 0, said
        assert f"$log/{node}-p1  connected" in said
        one.disconnect()
    broker.stop()
    code, said = run(broker, "why", "--client", member, "--topic", "a/b")
    assert code == 0, said
    published, home, part = said.split("\n\n")
    assert published.startswith(f"log {node}-p1\n")
    assert f"published by {sender} as packet 1" in published
    assert home.startswith(f"log {node}-p0\n")
    assert f"recorded for {share} (" in home
    assert part.startswith(f"log {node}-p1\n")
    assert f"in log {node}-p0, assigned to {share} here, and taken" in part
    assert f"for {member}, subscription {share} at QoS 1: acknowledged" in part
    code, said = run(broker, "log", "verify")
    assert code == 0, said
    assert "1 message of other logs had to be taken, all there" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            [*TWO, "--bridge-user-map", "ann=a", "--password-file", "users"],
            "bridge_user_map cannot be combined yet",
        ),
        ([*TWO, "--auth-subject", "foldmq.auth"], "auth_subject cannot be combined yet"),
        (["--processes", "99"], "must be at most 32"),
    ],
)
def test_settings_that_several_processes_do_not_support(
    make_processes: Callable[..., Broker], args: list[str], said: str
) -> None:
    broker = make_processes(*args)
    assert said in broker.refused(78)
