"""The bridge of a broker with several processes, whose clients belong to different logs."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.broker import environment, foldmq, wait_until_gone
from harness.brokerprocesses import TWO, client_of, processes
from harness.drill import PAUSE, ROUNDS
from harness.fixtures import unique
from harness.mqtt5_rawclient import Clients5
from harness.packets import Connack, Puback, Publish
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until
from nats.errors import Error

from e2e.bridging import Place, Visitor, received, visitor
from eventstore.partitions import partition_of

__all__ = ["visitor"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("bridges"), "", *TWO) as made:
        yield made


@pytest.fixture
def clients(place: Place) -> Iterator[Clients5]:
    with contextlib.closing(Clients5("127.0.0.1", place.broker.port)) as made:
        yield made


def topic_of(home: int, name: str) -> str:
    """Return a topic whose messages from NATS a process records."""
    return next(
        found for found in (f"{name}x{at}" for at in range(100)) if partition_of(found, 2) == home
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_pass_between_nats_and_the_clients_of_all_processes(
    clients: Clients5, visitor: Visitor, qos: int
) -> None:
    names = [topic_of(home, unique("both")) for home in (0, 1)]
    readers = [clients.connect(client_of(number, unique("r"))) for number in (0, 1)]
    for reader in readers:
        assert reader.subscribe((f"{names[0]}/+", 1), (f"{names[1]}/+", 1), ("+/a", 1)) == (1, 1, 1)
    ear = visitor.hear(*(f"{name}.>" for name in names))
    # At once: the SUBACK says that the home of the topics has subscribed.
    for name, number in itertools.product(names, range(10)):
        if qos:
            said = visitor.recorded(f"{name}.a", b"%d" % number, qos)
            assert said["stream"].endswith(f"-p{names.index(name)}")
        else:
            visitor.publish(f"{name}.a", b"%d" % number)
    wanted = [(f"{name}/a", b"%d" % number, min(qos, 1)) for name in names for number in range(10)]
    for reader in readers:
        got = received(reader, 20)
        assert sorted(got) == sorted(wanted)
        for name in names:
            of = [payload for topic, payload, _ in got if topic == f"{name}/a"]
            assert of == [b"%d" % number for number in range(10)]
    heard = len(ear.after(20))
    writers = [clients.connect(client_of(number, unique("w"))) for number in (0, 1)]
    for name, writer in itertools.product(names, writers):
        for number in range(5):
            writer.publish(f"{name}/b", b"%d" % number, qos)
    ear.after(heard + 20)
    for reader in readers:
        assert len(received(reader, 20)) == 20
    sent = ear.heard[heard:]
    assert len(sent) == 20
    for name, writer in itertools.product(names, writers):
        mine = [
            one
            for one in sent
            if (one.topic, one.headers["Foldmq-Client"]) == (f"{name}/b", writer.client_id)
        ]
        assert [one.data for one in mine] == [b"%d" % number for number in range(5)]


def test_a_nats_service_answers_clients_of_both_processes(
    clients: Clients5, visitor: Visitor
) -> None:
    name = unique("add")

    async def serve(message: object) -> None:
        await message.respond(b"re " + message.data)  # type: ignore[attr-defined]

    visitor.do(visitor.client.subscribe(name, cb=serve))
    visitor.flush()
    readers = [clients.five(client_of(number, unique("a"))) for number in (0, 1)]
    for reader in readers:
        assert reader.subscribe((f"{name}/re", 1)) == (1,)
    for asking in readers:
        properties = ((p5.RESPONSE_TOPIC, f"{name}/re"), (p5.CORRELATION_DATA, b"7"))
        asking.send(p5.publish(name, b"1", properties=properties))
        for reader in readers:  # each subscribes to the response topic
            got = reader.expect_message(f"{name}/re", b"re 1", properties=None)
            assert got.get(p5.CORRELATION_DATA) == b"7"
    for reader in readers:
        reader.expect_alive()


def test_the_log_has_the_origin_of_a_message(
    place: Place, clients: Clients5, visitor: Visitor
) -> None:
    name = topic_of(0, unique("why"))
    member = client_of(1, unique("m"))
    client = clients.connect(member)
    assert client.subscribe((name, 1)) == (1,)
    visitor.recorded(name, b"1")
    received(client, 1)
    command = [foldmq(), "why", "--client", member, "--topic", name]
    command += ["--data-dir", str(place.broker.data_dir)]

    def acknowledged() -> bool:  # recorded after ack_delay
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False
        )
        assert done.returncode == 0, done.stderr
        assert "published by $nats" in done.stdout
        return f"for {member}, subscription {name} at QoS 1: acknowledged" in done.stdout

    until(acknowledged, "the acknowledgement")


# ------------------------------------------------------------------ kills


class ReconnectingReader:
    """A client that comes back after each kill; it runs in a thread of its own."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client_id = client_id
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(ConnectionClosedError, OSError, TimeoutError),
                RawClient(self._port) as client,
            ):
                answer = client.connect(self.client_id, clean=False)
                if isinstance(answer, Connack) and answer.code == 0:
                    self.work(client)
            self._over.wait(0.1)

    def work(self, client: RawClient) -> None:
        """Use a connection until the end."""
        raise NotImplementedError

    @property
    def over(self) -> bool:
        """Whether the thread is to end."""
        return self._over.is_set()


class Writer(ReconnectingReader):
    """Publishes numbers at QoS 1; a number that was not acknowledged is published again."""

    def __init__(self, port: int, client_id: str, topic: str) -> None:
        self.acknowledged = 0
        self._topic = topic
        super().__init__(port, client_id)

    def work(self, client: RawClient) -> None:
        while not self.over:
            number = self.acknowledged + 1
            pid = number % 60_000 + 1
            client.send(p.publish(self._topic, b"%d" % number, 1, pid))
            while client.receive() != Puback(pid):
                pass
            self.acknowledged = number
            self._over.wait(PAUSE)


class Reader(ReconnectingReader):
    """Takes what its persistent session gets."""

    def __init__(self, port: int, client_id: str, *filters: str) -> None:
        self.got: dict[str, list[int]] = defaultdict(list)
        self.subscribed = threading.Event()
        self._filters = filters
        super().__init__(port, client_id)

    def work(self, client: RawClient) -> None:
        if not self.subscribed.is_set():
            client.subscribe(*((one, 1) for one in self._filters))
            self.subscribed.set()
        while not self.over:
            with contextlib.suppress(TimeoutError):
                message = client.receive(0.5)
                if isinstance(message, Publish):
                    self.got[message.topic].append(int(message.payload))
                    client.acknowledge(message)


class NatsWriter:
    """Publishes numbers from NATS; one that was not acknowledged is published again."""

    def __init__(self, port: int, subject: str) -> None:
        self.acknowledged = 0
        self._subject = subject
        self._over = threading.Event()
        self._visitor = Visitor(port)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PAUSE):
            number = self.acknowledged + 1
            headers = {"Foldmq_QoS": "1", "Nats_Msg_Id": f"{self._subject} {number}"}
            with contextlib.suppress(Error):  # a timeout, or no responders
                said = self._visitor.ask(self._subject, b"%d" % number, timeout=1, **headers)
                assert json.loads(said)["seq"] > 0
                self.acknowledged = number

    def end(self) -> None:
        """End the thread, unless it has ended."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._visitor.close()


def in_order(numbers: list[int], through: int) -> None:
    """Check that all numbers are there, the first of each in order."""
    first = list(dict.fromkeys(numbers))
    assert first[:through] == list(range(1, through + 1)), first


@pytest.mark.drill
@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_nothing_acknowledged_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    place = Place(tmp_path / "broker", "", *TWO)
    broker = place.broker
    broker.start()
    topics = [topic_of(home, "in") for home in (0, 1)]
    threads: list[ReconnectingReader | NatsWriter] = []
    try:
        with Visitor(place.nats_port) as visitor:
            ear = visitor.hear("out.>")
            filters = ("out/+", f"{topics[0]}/+", f"{topics[1]}/#")
            readers = [
                Reader(broker.port, client_of(number, "reader"), *filters) for number in (0, 1)
            ]
            threads += readers
            until(lambda: all(one.subscribed.is_set() for one in readers), "subscriptions")
            writers = [
                Writer(broker.port, client_of(number, "writer"), f"out/{number}")
                for number in (0, 1)
            ]
            senders = [NatsWriter(place.nats_port, f"{topic}.n") for topic in topics]
            threads += [*writers, *senders]
            load: list[Writer | NatsWriter] = [*writers, *senders]

            def after(count: int) -> None:
                wanted = [one.acknowledged + count for one in load]
                until(
                    lambda: all(
                        one.acknowledged >= most for one, most in zip(load, wanted, strict=True)
                    ),
                    f"{count} more acknowledgements of each",
                )

            for victim in [0, 1] * ROUNDS:
                after(15)
                before = processes(broker)
                os.kill(before[victim], signal.SIGKILL)
                assert wait_until_gone(before[victim])
                until(lambda: len(processes(broker)) == 2, "both processes")
                other = 1 - victim
                assert processes(broker)[other] == before[other], "the other process ended as well"
            after(15)
            for one in load:
                one.end()
            for number, writer in enumerate(writers):

                def has_all(number: int = number, most: int = writer.acknowledged) -> bool:
                    sent = {
                        int(one.data) for one in list(ear.heard) if one.topic == f"out/{number}"
                    }
                    return sent >= set(range(1, most + 1))

                until(has_all, f"all of out/{number} in NATS")
                of = [int(one.data) for one in ear.heard if one.topic == f"out/{number}"]
                in_order(of, writer.acknowledged)
            wanted = {f"out/{number}": one.acknowledged for number, one in enumerate(writers)}
            wanted |= {f"{topic}/n": senders[at].acknowledged for at, topic in enumerate(topics)}
            for reader in readers:
                for topic, most in wanted.items():
                    until(
                        lambda topic=topic, most=most, reader=reader: (  # type: ignore[misc]
                            set(reader.got[topic]) >= set(range(1, most + 1))
                        ),
                        f"all of {topic} at {reader.client_id}",
                    )
                    in_order(reader.got[topic], most)
            print(f"acknowledged: {wanted}")
    finally:
        for thread in threads:
            thread.end()
        broker.stop()
        lines = broker.log
        broker.clean_up()
    assert not re.findall("Traceback|the bridge failed", lines)
    command = [foldmq(), "log", "verify", "--data-dir", str(broker.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
