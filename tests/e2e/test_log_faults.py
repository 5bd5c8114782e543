"""Faults of the log's store, seen from outside: nothing acknowledged is lost."""

import hashlib
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness import packets as p
from harness.broker import Broker, free_port
from harness.drill import PAUSE
from harness.fixtures import fill
from harness.nats import ACCESS, Nats
from harness.packets import Connack, Puback, Publish
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

from e2e.log_damage import block, flip, without_projections
from e2e.tools import run
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import GENESIS, decode_record, encode_record, link_of

pytestmark = pytest.mark.timeout(180)
TIMEOUT = 40.0


def publish_some(port: int, count: int = 20) -> None:
    with RawClient(port) as client:
        assert client.connect("some", clean=False).code == 0
        client.subscribe(("t", 1))
        for number in range(count):
            client.publish("other", b"message %d" % number * 10, 1)
        client.disconnect()


def digests(folder: Path) -> dict[str, str]:
    """The stored files, without those about the process that uses them."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("foldmq.lock", "nats.pid", "nats.log")
    }


class Load(threading.Thread):
    """Publishes numbered messages at QoS 1 until it is stopped, with one unacknowledged at most.

    After each failure it reconnects and continues with the next number.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.acknowledged: list[int] = []
        self.refusals: list[int] = []
        self.number = 0
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with RawClient(self.port) as client:
                    self._publish(client)
            except (ConnectionClosedError, OSError):
                time.sleep(0.05)

    def _publish(self, client: RawClient) -> None:
        connack = client.connect("load", clean=True)
        if connack.code:
            self.refusals.append(connack.code)
            time.sleep(0.2)
            return
        while not self._stopped.is_set():
            number, self.number = self.number, self.number + 1
            packet_id = client.next_id() % 65_000 + 1
            client.send(p.publish("load", b"%d" % number + b"." * 2000, 1, packet_id))
            assert client.receive(TIMEOUT) == Puback(packet_id)
            self.acknowledged.append(number)
            time.sleep(PAUSE)

    def progressed(self) -> Callable[[], bool]:
        """Whether something was acknowledged since now."""
        before = len(self.acknowledged)
        return lambda: len(self.acknowledged) > before

    def stop(self) -> None:
        self._stopped.set()
        self.join(TIMEOUT)
        assert not self.is_alive()


def offline_subscriber(port: int) -> None:
    with RawClient(port) as client:
        assert client.connect("absent", clean=False).code == 0
        client.subscribe(("load", 1))
        client.disconnect()


def check_received(port: int, load: Load) -> None:
    """A subscriber that was away gets all that was acknowledged, in order."""
    numbers: list[int] = []
    with RawClient(port) as client:
        assert client.connect("absent", clean=False) == Connack(0, session_present=True)
        while not numbers or numbers[-1] < load.acknowledged[-1]:
            received = client.receive(TIMEOUT)
            assert isinstance(received, Publish)
            numbers.append(int(received.payload.rstrip(b".")))
            client.send(p.puback(received.packet_id or 0))
    assert numbers == sorted(numbers)
    assert set(load.acknowledged) <= set(numbers)


# ------------------------------------------------------- damage in the store


@pytest.fixture
def stopped(make_broker: Callable[..., Broker]) -> Broker:
    """A broker with a few records, ended in good order."""
    broker = make_broker()
    broker.start()
    publish_some(broker.port)
    broker.stop()
    return broker


def test_flipped_byte_behind_the_projections(stopped: Broker) -> None:
    """The state is not touched: the broker serves, and says once that history is damaged."""
    flip(stopped, 0.3)
    stopped.start()
    until(lambda: "the log is damaged" in stopped.log, "the damage being told")
    with RawClient(stopped.port) as client:
        assert client.connect("some", clean=False) == Connack(0, session_present=True)
        client.publish("t", b"on", 1)
    where = ("--data-dir", str(stopped.data_dir))
    advice = run("doctor", *where, code=1).out
    assert "problem   the log is damaged" in advice
    assert "  damaged        record " in run("status", *where).out
    stopped.stop()
    assert stopped.log.count("the log is damaged") == 1
    run("log", "verify", "--data-dir", str(stopped.data_dir), code=1)


@pytest.mark.parametrize("place", [0.3, 1.0])
def test_flipped_byte_in_the_store(stopped: Broker, tmp_path: Path, place: float) -> None:
    flip(stopped, place)
    without_projections(stopped)
    before = digests(stopped.data_dir)
    lines = {stopped.refused(65) for _ in range(2)}
    assert digests(stopped.data_dir) == before
    (line,) = lines
    assert line.startswith("the log is damaged: record ")
    assert f"salvage --data-dir {stopped.data_dir} --to {stopped.data_dir}.salvaged" in line
    saved_in = tmp_path / "saved"
    result = run("salvage", "--data-dir", str(stopped.data_dir), "--to", str(saved_in))
    assert result.err == ""
    kept, damage, *_, advice = result.lines
    assert kept.startswith("kept ")
    assert damage.startswith("given up: ")
    assert advice.startswith("continue with: ")
    assert advice.endswith(f"foldmq serve --data-dir {saved_in}")
    assert digests(stopped.data_dir) == before
    stopped.data_dir = saved_in
    stopped.start()
    with RawClient(stopped.port) as client:
        assert client.connect("some", clean=False) == Connack(0, session_present=True)
        client.publish("t", b"on", 1)
    stopped.stop()
    stopped.start()
    stopped.stop()


def test_what_is_not_certain_behind_lost_records(stopped: Broker, tmp_path: Path) -> None:
    """Until a session begins anew; also for past moments, with and without an index."""
    flip(stopped, 0.3)
    without_projections(stopped)
    saved_in = tmp_path / "saved"
    run("salvage", "--data-dir", str(stopped.data_dir), "--to", str(saved_in))
    where = ("--data-dir", str(saved_in))
    gave_up = "foldmq salvage gave up record"

    def check_past() -> None:
        shown = run("replay", "--session", "some", *where).out
        assert f"not certain: {gave_up}" in shown
        total = run("replay", *where).out
        assert gave_up in total
        assert "affected: 1 session, some" in total

    check_past()
    assert gave_up in run("replay", "--session", "nobody", *where, code=1).err
    stopped.data_dir = saved_in
    for _ in range(2):  # from the log, then from the projections
        stopped.start()
        assert gave_up in run("sessions", "show", "some", *where).out
        assert orjson.loads(run("sessions", "show", "some", "--json", *where).out)["unsure"]
        assert "  not certain" in run("status", *where).out
        for command in (
            ("subscriptions", "--topic", "t"),
            ("retained", "ls"),
            ("sessions", "ls"),
            ("log", "--type", "BrokerStarted"),
            ("log", "--session", "some", "--from", "2", "-n", "12"),
            ("doctor", "some", "--json"),
            ("doctor", "t", "--json"),
        ):
            assert gave_up in run(*command, *where).err
        for command in (
            ("sessions", "show", "nobody"),
            ("retained", "get", "nowhere"),
            ("doctor", "nobody"),
            ("doctor", "no+topic"),
        ):
            assert gave_up in run(*command, *where, code=1).err
        for subject in ("some", "t"):
            assert gave_up in run("doctor", subject, *where).out
        assert gave_up in run("why", "--topic", "other", "--client", "some", *where).out
        assert gave_up not in run("why", "--topic", "other", *where).out
        check_past()
        run("log", "index", *where)
        check_past()
        stopped.stop()
    stopped.start()
    with RawClient(stopped.port) as client:
        assert client.connect("some", clean=True) == Connack(0, session_present=False)
        client.subscribe(("t", 1))
        assert "not certain" not in run("sessions", "show", "some", *where).out
        assert "retained messages may be missing" in run("status", *where).out.replace("\n", " ")


def test_log_cut_short(stopped: Broker) -> None:
    """What is left is an unbroken chain; only the watermark knows that there was more."""
    data = block(stopped).read_bytes()
    block(stopped).write_bytes(data[: len(data) * 2 // 3])
    line = stopped.refused(65)
    assert line.startswith("the log is damaged: record ")
    assert "the log had reached record " in line
    assert stopped.refused(65) == line


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damage_to_the_last_acknowledged_records(
    make_broker: Callable[..., Broker], damage: str
) -> None:
    """The last record looks incomplete, although it was acknowledged."""
    broker = make_broker()
    broker.start()
    publish_some(broker.port)
    with RawClient(broker.port) as client:
        client.connect("last")
        client.publish("last", b"acknowledged", 1)
        broker.kill_all()
    data = bytearray(block(broker).read_bytes())
    last = data.index(b"acknowledged")
    if damage == "cut":
        del data[last:]
    else:
        data[last] ^= 1
    block(broker).write_bytes(data)
    assert "the log had reached record " in broker.refused(65)


def test_missing_store(stopped: Broker) -> None:
    shutil.rmtree(stopped.data_dir / "jetstream")
    line = stopped.refused(65)
    assert line.startswith("the log is lost: stream FOLDMQ_LOG_")
    assert not list(stopped.data_dir.rglob("*.blk")), "no new log was begun"
    assert stopped.refused(65) == line


def test_salvage_while_the_broker_runs(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    new = str(tmp_path / "new")
    result = run("salvage", "--data-dir", str(broker.data_dir), "--to", new, code=75)
    assert f"is in use by another foldmq broker (process {broker.pid})" in result.err
    assert not (tmp_path / "new").exists()
    broker.stop()


# ------------------------------------------------------------------ full disk

IMPATIENT = "commit_timeout = 2\nlog_format = 'json'\n"


@pytest.mark.parametrize(
    ("rounds", "processes"), [pytest.param(2, 1, marks=pytest.mark.long), (1, 2)]
)
def test_full_disk(
    make_broker: Callable[..., Broker], small_disk: Path, rounds: int, processes: int
) -> None:
    broker = make_broker(f"processes = {processes}\n{IMPATIENT}")
    broker.data_dir = small_disk / "data"
    broker.start()
    offline_subscriber(broker.port)
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    for number in range(1, rounds + 1):
        with RawClient(broker.port) as idle:
            assert idle.connect("idle").code == 0
            before = len(broker.told("log cannot be written"))
            filler = fill(small_disk)
            until(
                lambda: len(broker.told("log cannot be written")) > before,  # noqa: B023 - at once
                "a word about the full disk",
            )
            acknowledged = len(load.acknowledged)
            idle.expect_alive()
            idle.expect_closed(TIMEOUT)
        load.refusals.clear()
        until(lambda: load.refusals, "a refused CONNECT")
        assert set(load.refusals) == {3}
        assert len(load.acknowledged) <= acknowledged + 1
        reasons = [line["reason"] for line in broker.told("log cannot be written")]
        assert len(reasons) <= 3 * number * processes, reasons
        assert any("no space left for the log" in reason for reason in reasons)
        filler.unlink()
        until(load.progressed(), "acknowledgements again")
        until(
            lambda: len(broker.told("log is written again")) == number * processes,  # noqa: B023 - used at once
            "a word about it",
        )
    load.stop()
    broker.stop()
    broker.start()
    check_received(broker.port, load)
    broker.stop()


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_stop_with_a_full_disk(
    make_broker: Callable[..., Broker], small_disk: Path, processes: int
) -> None:
    broker = make_broker(f"processes = {processes}\n{IMPATIENT}")
    broker.data_dir = small_disk / "data"
    broker.start()
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    filler = fill(small_disk)
    until(lambda: load.refusals, "a refused CONNECT")
    load.stop()
    os.kill(broker.pid, signal.SIGTERM)
    until(lambda: broker.returncode is not None, "the end")
    assert broker.returncode == 74
    assert broker.log.count("foldmq: stopped with unwritten events") == processes
    filler.unlink()


def test_kill_with_a_full_disk(make_broker: Callable[..., Broker], small_disk: Path) -> None:
    broker = make_broker(IMPATIENT)
    broker.data_dir = small_disk / "data"
    broker.start()
    offline_subscriber(broker.port)
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    filler = fill(small_disk)
    until(lambda: broker.told("log cannot be written"), "a word about the full disk")
    broker.kill()
    filler.unlink()
    broker.start()
    until(load.progressed(), "acknowledgements again")
    load.stop()
    check_received(broker.port, load)
    broker.stop()


# ------------------------------------------------- the store while the broker runs


def store(broker: Broker) -> Path:
    return broker.data_dir / "jetstream"


def truncated(broker: Broker) -> None:
    with block(broker).open("r+b") as file:
        file.truncate(0)


STRIKES: dict[str, tuple[str, Callable[[Broker], object]]] = {
    "store removed": ("is gone", lambda broker: shutil.rmtree(store(broker))),
    "data directory renamed": (
        "is gone",
        lambda broker: broker.data_dir.rename(broker.data_dir.with_name("away")),
    ),
    "block removed": ("lacks block 1.blk", lambda broker: block(broker).unlink()),
    "block cut short": ("has a block that was cut short: 1.blk", truncated),
}


@pytest.mark.parametrize("strike", ["data directory renamed", "block cut short"])
def test_store_gone_while_the_broker_runs(make_broker: Callable[..., Broker], strike: str) -> None:
    """The server goes on writing to files without a name: nothing of that is acknowledged."""
    what, act = STRIKES[strike]
    monitor = free_port()
    broker = make_broker(IMPATIENT + f"metrics = '127.0.0.1:{monitor}'\n")
    broker.start()
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    act(broker)
    until(lambda: broker.told("log cannot be written"), "a word about the store")
    acknowledged = len(load.acknowledged)
    reason = broker.told("log cannot be written")[0]["reason"]
    assert reason.startswith(f"the store of the log in {store(broker)} {what}: ")
    assert "restore a backup" in reason
    load.refusals.clear()
    until(lambda: load.refusals, "a refused CONNECT")
    assert set(load.refusals) == {3}
    assert len(load.acknowledged) <= acknowledged + 1
    with pytest.raises(urllib.error.HTTPError) as unready:
        urllib.request.urlopen(f"http://127.0.0.1:{monitor}/readyz", timeout=TIMEOUT)
    assert unready.value.code == 503
    assert any(what in one for one in orjson.loads(unready.value.read())["reasons"])
    with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/metrics", timeout=TIMEOUT) as answer:
        metrics = answer.read().decode().splitlines()
    assert {"foldmq_log_store_damaged 1.0", "foldmq_log_writable 0.0"} <= set(metrics)
    load.stop()
    os.kill(broker.pid, signal.SIGTERM)
    until(lambda: not broker.running, "the broker's end")
    assert broker.returncode == 65
    assert "Traceback" not in broker.log


@pytest.mark.parametrize("strike", ["store removed", "block removed"])
def test_no_command_says_that_a_log_without_its_files_is_intact(
    make_broker: Callable[..., Broker], strike: str
) -> None:
    """The NATS server still answers everything from its memory."""
    what, act = STRIKES[strike]
    broker = make_broker(IMPATIENT)
    broker.start()
    publish_some(broker.port)
    place = "--data-dir", str(broker.data_dir)
    asked = ("log verify", "log verify --json", "verify", "audit")
    for command in asked:
        run(*command.split(), *place)
    act(broker)
    until(lambda: broker.told("log cannot be written"), "a word about the store")
    for command in asked:
        lists = command.startswith("log") and "block" in what
        ran = run(*command.split(), *place, code=1 if lists else 65)
        said = ran.out + ran.err
        assert what in said or "has no log although a broker runs" in said, command
        assert not any(word in said for word in ("intact: ", "equal: ", "kept: ")), command
    broker.kill_all()


def test_store_that_comes_back(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    offline_subscriber(broker.port)
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    away = store(broker).rename(broker.data_dir / "away")
    until(lambda: "is gone: records " in broker.log, "a word about the store")
    away.rename(store(broker))
    until(load.progressed(), "acknowledgements again")
    load.stop()
    broker.restart(kill=True)
    check_received(broker.port, load)
    broker.stop()


def test_mark_removed_while_the_broker_runs(make_broker: Callable[..., Broker]) -> None:
    """Without it, a later start could not know that the log was cut short."""
    broker = make_broker()
    broker.start()
    publish_some(broker.port)
    mark = broker.data_dir / "log.mark"
    mark.unlink()
    until(mark.exists, "the mark")
    publish_some(broker.port)
    broker.kill_all()
    shutil.rmtree(store(broker))
    assert broker.refused(65).startswith("the log is lost: stream FOLDMQ_LOG_")


# --------------------------------------------------------------- foreign NATS


@pytest.mark.parametrize("strike", ["kill", "pause"])
def test_external_server_under_load(
    external: Nats, on_external: Callable[..., Broker], strike: str
) -> None:
    broker = on_external()
    broker.start()
    assert "sync_interval, which clients cannot see" in broker.log
    offline_subscriber(broker.port)
    load = Load(broker.port)
    for _ in range(2 if strike == "kill" else 1):
        until(load.progressed(), "acknowledgements")
        assert external.process is not None
        if strike == "kill":
            external.kill()
            external.start()
        else:
            external.process.send_signal(signal.SIGSTOP)
            time.sleep(7)
            external.process.send_signal(signal.SIGCONT)
        until(load.progressed(), "acknowledgements again")
    load.stop()
    broker.restart(kill=True)
    check_received(broker.port, load)
    broker.stop()


def test_external_server_missing_at_the_end(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    """Only the end itself could not be written: it is reported without a traceback."""
    broker = on_external("commit_timeout = 1\n")
    broker.start()
    publish_some(broker.port, 3)
    external.kill()
    os.kill(broker.pid, signal.SIGTERM)
    until(lambda: not broker.running, "the broker's end")
    assert "Traceback" not in broker.log
    assert (
        "foldmq: stopped with unwritten events, because the log could not be written for 1 s"
        in broker.log
    )


def test_server_with_a_small_maximum_payload(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    external.kill()
    external.max_payload = 64 * 1024
    external.start()
    line = on_external().refused(78)
    assert line.startswith(f"max_payload of the NATS server at {external.url} is 65536 bytes")


def test_wrong_password(external: Nats, make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ACCESS.replace("secret", "wrong"), "--nats-url", external.url)
    line = broker.refused(69)
    assert "the server rejects our credentials" in line
    assert "wrong" not in line


@pytest.mark.parametrize(
    ("setting", "value"),
    [("storage", "memory"), ("subjects", ["another"])],
)
def test_stream_with_weaker_guarantees(
    external: Nats, on_external: Callable[..., Broker], setting: str, value: object
) -> None:
    wanted = {"name": "FOLDMQ_LOG_n1", "subjects": ["foldmq.log.n1"], "allow_direct": True}
    external.api("STREAM.CREATE.FOLDMQ_LOG_n1", {**wanted, setting: value})
    line = on_external().refused(78)
    assert line.startswith(f"stream FOLDMQ_LOG_n1: {setting} is ")
    assert external.api("STREAM.INFO.FOLDMQ_LOG_n1")["state"]["messages"] == 0


def test_stream_of_a_later_format(external: Nats, on_external: Callable[..., Broker]) -> None:
    config = {"name": "FOLDMQ_LOG_n1", "subjects": ["foldmq.log.n1"], "allow_direct": True}
    external.api("STREAM.CREATE.FOLDMQ_LOG_n1", {**config, "metadata": {"foldmq.log": "2"}})
    assert "holds a log of format 2, this foldmq reads format 1" in on_external().refused(78)


def test_stream_deleted_while_the_broker_was_away(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    broker = on_external()
    broker.start()
    publish_some(broker.port)
    broker.stop()
    external.api("STREAM.DELETE.FOLDMQ_LOG_n1")
    assert broker.refused(65).startswith("the log is lost: stream FOLDMQ_LOG_n1 existed before")
    assert external.api("STREAM.NAMES")["streams"] == ["FOLDMQ_STATE_n1"], "no new log was begun"


# That an emptied log is noticed: tests/eventstore/log/test_jetstream_log.py.
@pytest.mark.parametrize("method", [pytest.param("PURGE", marks=pytest.mark.long), "DELETE"])
def test_stream_emptied_or_deleted_while_the_broker_runs(
    external: Nats, on_external: Callable[..., Broker], method: str
) -> None:
    broker = on_external()
    broker.start()
    load = Load(broker.port)
    until(load.progressed(), "acknowledgements")
    external.api(f"STREAM.{method}.FOLDMQ_LOG_n1")
    until(lambda: not broker.running, "the broker's end")
    load.stop()
    assert broker.log.count("foldmq: the log is ") == 1
    assert "Traceback" not in broker.log


def test_second_broker_with_the_same_data_directory(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    first, second = on_external(), on_external()
    second.data_dir = first.data_dir
    first.start()
    line = second.refused(75)
    assert f"is in use by another foldmq broker (process {first.pid})" in line
    publish_some(first.port)
    first.stop()


def test_second_broker_with_the_same_node_id(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    first, second = on_external(), on_external()
    first.start()
    offline_subscriber(first.port)
    load = Load(first.port)
    until(load.progressed(), "acknowledgements")
    line = second.refused(75)
    assert line.startswith(f"node n1 already runs on {external.url} (process {first.pid} on ")
    until(load.progressed(), "acknowledgements of the first broker")
    load.stop()
    check_received(first.port, load)
    first.kill()
    second.start()
    second.stop()


def test_broker_that_was_replaced_while_it_was_suspended(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    """It does not answer, so the second one starts; it must notice and acknowledge nothing more."""
    first, second = on_external(), on_external()
    first.start()
    offline_subscriber(first.port)
    load = Load(first.port)
    until(load.progressed(), "acknowledgements")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second.start()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    until(lambda: not first.running, "the end of the first broker")
    load.stop()
    assert "another broker writes to log FOLDMQ_LOG_n1" in first.log
    check_received(second.port, load)
    second.stop()


# ------------------------------------------------- logs that are not for us


def test_record_of_a_later_format(external: Nats, on_external: Callable[..., Broker]) -> None:
    broker = on_external()
    broker.start()
    broker.stop()
    external.do(
        lambda client: client.request("foldmq.log.n1", b"FMQ\x07" + bytes(200), timeout=TIMEOUT)
    )
    line = broker.refused(78)
    assert (
        "of the log has format 7, this foldmq reads formats 1 to 2: use the foldmq that wrote"
        in line
    )


def test_a_message_that_is_not_a_record(external: Nats, on_external: Callable[..., Broker]) -> None:
    broker = on_external()
    broker.start()
    broker.stop()
    external.do(lambda client: client.request("foldmq.log.n1", b"hello", timeout=TIMEOUT))
    assert "is not a foldmq record" in broker.refused(65)


@pytest.mark.parametrize(
    ("event", "code", "what"),
    [
        ({"e": "Teleported", "v": 1}, 78, "event 'Teleported' version 1 is not known"),
        ({"e": "Acked", "v": 1, "session": 7, "pids": []}, 65, "event Acked, field session = 7"),
    ],
)
def test_event_that_cannot_be_read(
    external: Nats, on_external: Callable[..., Broker], event: Any, code: int, what: str
) -> None:
    broker = on_external()
    broker.start()
    broker.stop()

    async def append(client: Any) -> None:
        query = orjson.dumps({"last_by_subj": "foldmq.log.n1"})
        reply = await client.request("$JS.API.DIRECT.GET.FOLDMQ_LOG_n1", query, timeout=TIMEOUT)
        last = decode_record(int(reply.headers["Nats-Sequence"]), reply.data)
        events: list[Any] = [BrokerStarted("later"), event]
        data = encode_record(
            previous=last.link, node="n1", time_ms=last.time_ms, events=events, payloads=[]
        )
        await client.request("foldmq.log.n1", data, timeout=TIMEOUT)

    external.do(append)
    line = broker.refused(code)
    assert what in line
    assert ", entry 1: " in line


def test_log_that_begins_with_another_one(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    """A record that is right in itself, but does not belong here."""
    broker = on_external()
    broker.start()
    broker.stop()
    alien = encode_record(
        previous=GENESIS, node="n1", time_ms=1, events=[BrokerStarted("x")], payloads=[]
    )
    assert len(link_of(alien)) == 32
    external.do(lambda client: client.request("foldmq.log.n1", alien, timeout=TIMEOUT))
    assert "does not continue record" in broker.refused(65)
