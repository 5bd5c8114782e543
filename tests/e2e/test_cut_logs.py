"""The log tools on a cut log: the rest is correct, and the removed part is reported as such."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Puback, Pubcomp, Pubrec, Will
from harness.rawclient import RawClient
from nats.aio.client import Client

from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, flip, refused, run
from eventstore.datadir import DataDir
from eventstore.format.records import link_of
from eventstore.log.record_reader import read_stored
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.jetstream import request_stream
from eventstore.server.embedded_server import EmbeddedServer

T = TypeVar("T")
PAYLOAD = bytes(32 * 1024)
AT_ONCE = 64


def before(clients: Clients) -> None:
    """What happens before the log is cut: it is needed afterwards. `doomed` stays connected."""
    archive = clients.connect("archive", clean=False)
    archive.subscribe(("hall/#", 2))
    archive.disconnect()
    clients.connect("quiet", clean=False).disconnect()
    evil = clients.connect(HOSTILE_ID, clean=False)
    evil.subscribe(("hall/#", 1))
    evil.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1, retain=True)
    evil.disconnect()
    doomed = clients.connect("doomed", will=Will("hall/will", b"gone", 1))
    doomed.publish("hall/door", b"open", 1)
    doomed.publish("hall/window", b"shut", 2)
    doomed.publish("lamp", b"on", 1, retain=True)
    half = clients.connect("half", clean=False)
    half.send(p.publish("late", b"unreleased", 2, 77, retain=True))
    half.expect(Pubrec(77))
    half.disconnect()


def load(client: RawClient, topic: str, mebibytes: int) -> None:
    """Publishes this many bytes without subscribers, at QoS 1."""
    count = mebibytes * 1024 * 1024 // len(PAYLOAD)
    for start in range(0, count, AT_ONCE):
        pids = range(start + 1, min(count, start + AT_ONCE) + 1)
        client.send(*(p.publish(topic, PAYLOAD, 1, pid) for pid in pids))
        for pid in pids:
            client.expect(Puback(pid))


def fill_until_cut(broker: Broker, client: RawClient) -> None:
    """Publishes until the broker has cut its log."""
    deadline = time.monotonic() + 60
    while "log cut" not in broker.log:
        assert time.monotonic() < deadline, broker.log
        load(client, "filler", 2)
        time.sleep(0.2)


def keep_all(broker: Broker) -> None:
    """Has the broker leave its log as it is."""
    told = broker.log.count("settings reloaded")
    broker.configure("keep = 0\nkeep_bytes = 0\n")
    broker.hangup()
    deadline = time.monotonic() + 20
    while broker.log.count("settings reloaded") == told:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.05)
    time.sleep(1)  # what had begun is done


def after(clients: Clients) -> None:
    """What happens after the cut, with messages from before it."""
    viewer = clients.connect("viewer")
    viewer.subscribe(("lamp", 1), ("late", 1))
    viewer.acknowledge(viewer.expect_publish("lamp", b"on", 1, retain=True))
    archive = clients.connect("archive", clean=False, session_present=True)
    archive.acknowledge(archive.expect_publish("hall/door", b"open", 1))
    got = archive.expect_publish("hall/window", b"shut", 2)
    archive.send(p.pubrec(got.packet_id or 0))  # no PUBCOMP follows
    half = clients.connect("half", clean=False, session_present=True)
    half.send(p.pubrel(77))
    half.expect(Pubcomp(77))
    viewer.acknowledge(viewer.expect_publish("late", b"unreleased", 1))
    for one in (viewer, half):
        one.disconnect()
    archive.close()


@dataclass(frozen=True, slots=True)
class Cut:
    """A broker's log that was cut, read while the broker runs."""

    broker: Broker
    first: int
    """The record with which it begins."""
    complete: int
    """The record from which on its state is known."""
    events: list[dict[str, Any]]

    @property
    def data(self) -> tuple[str, str]:
        return "--data-dir", str(self.broker.data_dir)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["type"] == kind]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    with (
        Broker(
            tmp_path_factory.mktemp("cut"), config='keep_bytes = "16MiB"\n', forked=True
        ) as broker,
        contextlib.closing(Clients("127.0.0.1", broker.port)) as clients,
    ):
        before(clients)
        filler = clients.connect("filler")
        fill_until_cut(broker, filler)
        keep_all(broker)
        after(clients)
        load(filler, "rest", 1)
        filler.expect_alive()
        events = run("log", "--data-dir", str(broker.data_dir), "--json").objects
        complete = next(one for one in events if one["type"] == "CheckpointCompleted")
        yield Cut(broker, record_of(events[0]), record_of(complete), events)


def record_of(event: dict[str, Any]) -> int:
    return int(event["position"].split(".")[0])


def copy_of(cut: Cut, folder: Path) -> Broker:
    """A broker, not started, with a copy of the store as a power cut would leave it."""
    copy = Broker(folder, forked=True)
    shutil.copytree(
        cut.broker.data_dir,
        copy.data_dir,
        ignore=shutil.ignore_patterns("*.lock", "nats.pid", "nats.conf"),
    )
    return copy


# ------------------------------------------------------------------------------------- log


def test_log_shows_checkpoints_and_cuts(cut: Cut) -> None:
    out = run("log", *cut.data, "--payload").out
    assert cut.first > 1
    for pattern in (
        r"-          checkpoint \d+ begun$",
        r"archive    repeated: session away, 1 subscription$",
        r"doomed     repeated: session connected, 0 subscriptions$",
        r"half       repeated: waiting for its PUBREL to be retained: late \(from \d+\.\d+\), 10 B",
        r"-          repeated: retained: .*lamp \(2 messages from .*, \"on\"$",
        r"-          checkpoint \d+ \(from \d+\.\d+\) complete: \d+ sessions, 2 retained messages$",
        r"-          repeated: still to be delivered: hall.*\(4 messages from .*\"open\", \"shut\"",
        rf"-          log cut before record {cut.first} of [\d :.-]+: it was larger than keep_",
        r"archive    sent from the queue hall/door \(\d+\.0\) QoS 1, packet 1, for hall/#$",
    ):
        assert re.search(r"^[\d :.-]{23} +\d+\.\d+  " + pattern, out, re.MULTILINE), pattern
    assert '"evil\\u001b[2J\\n\\u009b\\u007f id" repeated: session away, 1 subscription' in out


# ---------------------------------------------------------------------------------- replay


def test_replay_of_a_part_that_was_cut_off(cut: Cut) -> None:
    for moment, what in (
        ("1", f"no state before record {cut.first} can be rebuilt"),
        ("1h ago", f"no state before record {cut.first} can be rebuilt"),
        (f"{cut.first}.0", f"the state as of position {cut.first}.0, [^;]* cannot be rebuilt"),
    ):
        for more in ((), ("--session", "archive"), ("--topic", "#"), ("--json",)):
            line = refused("replay", *cut.data, "--at", moment, *more, code=66)
            found = re.fullmatch(
                rf"{what}: the log begins with record {cut.first} of [\d :.-]+: "
                r"earlier records were cut off on [\d :.-]+ \(it was larger than keep_bytes\); "
                r"states can be rebuilt from record "
                r"(\d+), [\d :.-]+ on",
                line,
            )
            assert found, line
            assert int(found[1]) == cut.complete
        assert refused("diff", *cut.data, moment, "now", code=66).startswith(what.split(",")[0])
    assert run("replay", *cut.data, "--at", str(cut.complete)).out.startswith("state as of record")
    if cut.complete > cut.first:
        refused("replay", *cut.data, "--at", str(cut.complete - 1), code=66)


def test_replay_is_the_state(cut: Cut) -> None:
    head, *rest = run("replay", *cut.data, "--json").objects
    sessions = {one["session"]: one for one in rest if one["kind"] == "session"}
    assert set(sessions) == {"archive", "quiet", "doomed", "half", "filler", HOSTILE_ID}
    retained = {one["topic"]: one for one in rest if one["kind"] == "retained"}
    assert set(retained) == {"lamp", "late", HOSTILE_TOPIC}
    assert head["sessions"] == 6
    assert head["connected"] == 2
    assert head["queued"] == 2
    assert head["wills"] == 1
    (archive,) = run("replay", *cut.data, "--session", "archive", "--json").objects
    assert [row["packet_id"] for row in archive["releasing"]["rows"]] == [2]
    assert archive["releasing"]["rows"][0]["topic"] == "hall/window"
    shown = run("replay", *cut.data, "--session", HOSTILE_ID).out
    assert re.search(r"queued: 2 messages, 8 B; the oldest: message \d+\.\d+ hall/door, 4 B", shown)


# ------------------------------------------------------------------------------------- why


# ------------------------------------------------------------------------ verify and salvage


def test_verify_a_log_that_was_cut(cut: Cut) -> None:
    ran = run("log", "verify", *cut.data)
    assert re.match(rf"the log begins with record {cut.first} of .*\nintact: \d+ records", ran.out)
    (found,) = run("log", "verify", *cut.data, "--json").objects
    assert (found["problems"], found["first_record"]) == (0, cut.first)


def with_log(folder: Path, what: Callable[[Client, str], Coroutine[Any, Any, T]]) -> T:
    """Runs a NATS server on a data directory, and on it what is given client and stream."""

    async def run_it() -> T:
        with DataDir(folder) as data:
            server = EmbeddedServer(data)
            await server.start()
            client = await connect(
                ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
            )
            try:
                return await what(client, f"FOLDMQ_LOG_{data.node()}")
            finally:
                await disconnect(client)
                await server.stop()

    return asyncio.run(run_it())


def test_removed_records(cut: Cut, tmp_path: Path) -> None:
    copy = copy_of(cut, tmp_path)

    async def purge(client: Client, stream: str) -> None:
        await request_stream(client, stream, f"STREAM.PURGE.{stream}", {"seq": cut.first + 3}, 10)

    with_log(copy.data_dir, purge)
    gone = (
        rf"record {cut.first} and all up to {cut.first + 2} are gone: the log begins with record "
        rf"{cut.first + 3}, and its last recorded cut was before record {cut.first}"
    )
    data = "--data-dir", str(copy.data_dir)
    for command in (
        ("replay", *data),
        ("diff", *data, "1", "now"),
        ("why", *data, "--client", "archive", "--topic", "hall/#"),
    ):
        assert refused(*command, code=65).startswith(f"the log is damaged: {gone}")
    ran = run("log", "verify", *data, code=1)
    assert gone in ran.lines
    # A block of the store still has the records that the server removed, unless it had no others.
    new = str(tmp_path / "new")
    kept = re.match(r"kept (\d+) of (\d+) records ", run("salvage", *data, "--to", new).out)
    assert kept is not None
    assert int(kept[2]) - int(kept[1]) in (0, 3)
    run("log", "verify", "--data-dir", new)


@pytest.mark.parametrize("behind", [True, False], ids=["behind the cut", "before the cut"])
def test_salvage(cut: Cut, tmp_path: Path, behind: bool) -> None:
    """A broker continues, whether or not the record of the cut is among the salvaged ones."""
    copy = copy_of(cut, tmp_path)
    said_at = record_of(cut.of("LogCut")[-1])
    carried_at = record_of(cut.of("MessagesCarried")[0])
    published = [record_of(one) for one in cut.of("MessagePublished")]
    bad = next(
        one for one in published if (one > said_at if behind else cut.complete < one < carried_at)
    )

    async def stored(client: Client, stream: str) -> bytes:
        return await anext(data async for _, data in read_stored(client, stream, bad, bad))

    flip(copy, link_of(with_log(copy.data_dir, stored)))
    new = tmp_path / "new" / "data"
    ran = run("salvage", "--data-dir", str(copy.data_dir), "--to", str(new))
    assert "given up: 1 record, " in ran.out
    assert f"bytes: record {bad} has a wrong checksum" in ran.out
    data = "--data-dir", str(new)
    assert "\nintact: " in run("log", "verify", *data).out
    said = run("log", *data, "--type", "LogCut", "-n", "1", "--json").objects[0]
    assert (said["first"], said["reason"]) == (cut.first, "keep_bytes")
    with (
        Broker(tmp_path / "new", forked=True) as mended,
        contextlib.closing(Clients("127.0.0.1", mended.port)) as clients,
    ):
        evil = clients.connect(HOSTILE_ID, clean=False, session_present=True)
        evil.acknowledge(evil.expect_publish("hall/door", b"open", 1))
        evil.acknowledge(evil.expect_publish("hall/window", b"shut", 1))
        viewer = clients.subscribed("lamp", 1)
        viewer.acknowledge(viewer.expect_publish("lamp", b"on", 1, retain=True))
