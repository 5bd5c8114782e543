"""Power cuts under load: the disk keeps exactly the data that it had received.

Two control tests prove that the drill is effective: unsynced data is lost on such a disk, and a
broker that syncs once a minute loses acknowledged messages.
"""

import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker, stand_still
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.nats import Nats
from harness.packets import Connack, Publish
from harness.powercut import Cache, Disk
from harness.rawclient import RawClient
from harness.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180 + 40 * ROUNDS)]
CACHES = pytest.mark.parametrize("cache", ["kept", "lost"])
WORSE = pytest.mark.parametrize("cache", [pytest.param("kept", marks=pytest.mark.long), "lost"])
PAGE = 4096


def write(path: Path, data: bytes, *, synced: bool) -> None:
    with path.open("ab") as out:
        out.write(data)
        out.flush()
        if synced:
            os.fsync(out.fileno())


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def overwrite_past_the_page_cache(path: Path, data: bytes) -> None:
    """Gives the disk a page without telling it to flush."""
    page = mmap.mmap(-1, PAGE)
    page.write(data * PAGE)
    out = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        os.write(out, page)
    finally:
        os.close(out)


@CACHES
def test_unsynced_data_is_lost(make_disk: Callable[[Cache], Disk], cache: Cache) -> None:
    """The control: the drill's disk loses what it should, and keeps what it must."""
    disk = make_disk(cache)
    write(disk.place / "synced", b"old", synced=True)
    write(disk.place / "synced", b"new" * PAGE, synced=False)
    write(disk.place / "never", b"new" * PAGE, synced=False)
    disk.cut()
    disk.power_on()
    assert read(disk.place / "synced") == b"old"
    assert read(disk.place / "never") == b""
    write(disk.place / "synced", b"er", synced=True)
    write(disk.place / "page", b"a" * PAGE, synced=True)
    overwrite_past_the_page_cache(disk.place / "page", b"b")
    disk.cut()
    disk.power_on()
    assert read(disk.place / "synced") == b"older"
    assert read(disk.place / "page") == (b"b" if cache == "kept" else b"a") * PAGE


def cut_the_power(broker: Broker, disk: Disk) -> None:
    """From the moment of the cut on, no client gets an answer."""
    stand_still(broker.pid)
    stand_still(broker.nats_pid)
    disk.cut()
    broker.kill_all()
    disk.power_on()


def cut_the_power_there(server: Nats, disk: Disk) -> None:
    """The same for a NATS server on another machine, whose power comes back."""
    stand_still(server.pid)
    disk.cut()
    server.kill()
    disk.power_on()
    server.start()


@WORSE
def test_power_cut(
    make_broker: Callable[..., Broker], make_disk: Callable[[Cache], Disk], cache: Cache
) -> None:
    disk = make_disk(cache)
    broker = make_broker()
    broker.data_dir = disk.place / "data"
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def blow() -> None:
        cut_the_power(broker, disk)
        broker.start()

    for _ in range(FEW):
        drill.strike(blow)
    drill.judge()
    broker.stop()


@WORSE
def test_power_cut_after_the_first_acknowledgement(
    make_broker: Callable[..., Broker], make_disk: Callable[[Cache], Disk], cache: Cache
) -> None:
    """All that a log needs to be found again is on disk as early as its first record."""
    disk = make_disk(cache)
    broker = make_broker()
    broker.data_dir = disk.place / "data"
    broker.start()
    with RawClient(broker.port) as client:
        client.connect("first", clean=False)
        client.subscribe(("t", 1))
    with RawClient(broker.port) as client:
        client.connect("second")
        client.publish("t", b"kept", 1, retain=True)
        cut_the_power(broker, disk)
    broker.start()
    with RawClient(broker.port) as client:
        assert client.connect("first", clean=False) == Connack(0, session_present=True)
        client.acknowledge(client.expect_a(Publish))
    broker.stop()


@pytest.mark.parametrize("cut_after", [pytest.param(1, marks=pytest.mark.long), 60])
def test_power_cut_of_an_encrypted_log(
    make_broker: Callable[..., Broker],
    make_disk: Callable[[Cache], Disk],
    tmp_path: Path,
    cut_after: int,
) -> None:
    """The key of a block is on disk before anything in it is acknowledged."""
    (tmp_path / "key").write_text("k" * 64)
    (tmp_path / "key").chmod(0o600)
    disk = make_disk("lost")
    broker = make_broker("", "--encryption-key-file", str(tmp_path / "key"))
    broker.data_dir = disk.place / "data"
    broker.start()
    with RawClient(broker.port) as client:
        client.connect("first", clean=False)
        client.subscribe(("t/#", 1))
    with RawClient(broker.port) as client:
        client.connect("second")
        for number in range(cut_after):
            client.publish(f"t/{number}", os.urandom(50_000), 1)
        cut_the_power(broker, disk)
    broker.start()
    with RawClient(broker.port) as client:
        assert client.connect("first", clean=False) == Connack(0, session_present=True)
        for number in range(cut_after):
            message = client.expect_a(Publish)
            assert message.topic == f"t/{number}"
            client.acknowledge(message)
    broker.stop()


def test_disk_that_fails(
    make_broker: Callable[..., Broker], make_disk: Callable[[Cache], Disk]
) -> None:
    """Every write and every sync fails from some moment on: nothing more is acknowledged.

    What a failed sync left behind in the page cache must not be taken for stored.
    """
    disk = make_disk("lost")
    broker = make_broker()
    broker.data_dir = disk.place / "data"
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def blow() -> None:
        # No sync is under way meanwhile: ext4 might say of it that it succeeded.
        stand_still(broker.nats_pid)
        disk.cut()
        os.kill(broker.nats_pid, signal.SIGCONT)
        time.sleep(drill.random.uniform(0.5, 2))
        if broker.running:
            broker.kill_all()
        disk.power_on()
        broker.start()

    for _ in range(FEW):
        drill.strike(blow)
    drill.judge()
    broker.stop()


def test_power_cut_of_a_foreign_server(
    make_disk: Callable[[Cache], Disk], external: Nats, on_external: Callable[..., Broker]
) -> None:
    """A server that syncs always, on another machine: the broker waits, and all is there."""
    disk = make_disk("lost")
    external.move(disk.place)
    broker = on_external()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(FEW):
        drill.strike(lambda: cut_the_power_there(external, disk))
    drill.judge()
    broker.stop()


def test_weaker_mode_loses_what_it_acknowledged(
    make_broker: Callable[..., Broker], make_disk: Callable[[Cache], Disk]
) -> None:
    """The control: the same cut, on a broker whose banner says that it syncs once a minute.

    What was there when everything was synced once is there, and what came later is not.
    """
    disk = make_disk("kept")
    broker = make_broker("", "--sync", "60")
    broker.data_dir = disk.place / "data"
    broker.start()
    assert "WEAKER" in broker.log
    drill = Drill(broker, SEED)
    drill.start()
    until(lambda: drill.account.totals()["acknowledged"] > 50, "acknowledgements")
    broker.pause()  # files are synced one by one: the watermark may be ahead of the log else
    disk.sync()
    broker.resume()
    before = drill.account.totals()["acknowledged"]
    until(lambda: drill.account.totals()["acknowledged"] > before + 100, "acknowledgements")
    cut_the_power(broker, disk)
    drill.abandon()
    broker.start()
    present, lost = drill.resume_offline_subscriber()
    assert present > 0, "what was synced is there"
    assert lost > 0, "the drill would not notice a loss"
    broker.stop()


def test_weaker_server_that_lost_what_it_acknowledged_is_noticed(
    make_disk: Callable[[Cache], Disk], external: Nats, on_external: Callable[..., Broker]
) -> None:
    """NATS syncs every two minutes by default; the broker that lives on ends, and says why."""
    disk = make_disk("lost")
    external.sync_interval = "2m"
    external.move(disk.place)
    broker = on_external()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    until(lambda: drill.account.totals()["acknowledged"] > 50, "acknowledgements")
    disk.sync()
    before = drill.account.totals()["acknowledged"]
    until(lambda: drill.account.totals()["acknowledged"] > before + 100, "acknowledgements")
    cut_the_power_there(external, disk)
    until(lambda: not broker.running, "the broker's end")
    drill.abandon()
    assert broker.returncode == 65
    (line,) = [line for line in broker.log.splitlines() if line.startswith("foldmq: ")]
    assert line.startswith("foldmq: the log is ")
    assert "Traceback" not in broker.log
