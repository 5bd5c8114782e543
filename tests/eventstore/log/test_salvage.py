"""Salvage of the intact part of a log whose store was damaged in every way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from harness.waiting import TIMEOUT

from cli.history.salvage import ProgressLine, report
from eventstore.datadir import DataDir, take_lock
from eventstore.errors import (
    CorruptLog,
    DataDirBusy,
    DataDirError,
    DiskFull,
    NoLog,
    UnknownLogFormat,
)
from eventstore.format import (
    GENESIS,
    BrokerStarted,
    ChainChecker,
    CheckpointBegun,
    CheckpointCompleted,
    Event,
    LogCut,
    MessagesCarried,
    Position,
    Record,
    SessionClosed,
    SessionExpired,
    UnknownEvent,
    encode_record,
    link_of,
    position,
)
from eventstore.log import SalvageResult, Watermark, read_records, read_tail, salvage
from eventstore.nats import ConnectionOptions, connect, disconnect, ensure_stream, request_stream
from eventstore.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nats.aio.client import Client

pytestmark = pytest.mark.system

COUNT = 12


def ignore(_what: str, _done: int, _total: int) -> None:
    pass


def made(count: int = COUNT) -> list[bytes]:
    records, link = [], GENESIS
    for number in range(count):
        events: list[Any] = [BrokerStarted(str(number)), SessionClosed("c", "x")]
        records.append(
            encode_record(
                previous=link,
                node="n1",
                time_ms=1_700_000_000_000 + number,
                events=events,
                payloads=[b"payload %d" % number * 20],
            )
        )
        link = link_of(records[-1])
    return records


async def _write(
    folder: Path, records: list[bytes], *, noted: int | None = None, first: int = 1
) -> None:
    with DataDir(folder) as data:
        data.write_private(folder / "node", "n1\n")
        server = EmbeddedServer(data)
        await server.start()
        client = await connect(
            ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        )
        await ensure_stream(client, "FOLDMQ_LOG_n1", ["foldmq.log.n1"])
        await request_stream(client, "", "STREAM.PURGE.FOLDMQ_LOG_n1", {"seq": first}, 10)
        for record in records:
            await client.request("foldmq.log.n1", record, timeout=TIMEOUT)
        await disconnect(client)
        await server.stop()
        if noted is not None:
            link = link_of(records[noted - 1]) if noted <= len(records) else GENESIS
            Watermark(folder / "log.mark", "FOLDMQ_LOG_n1").write(noted, link)


@contextlib.asynccontextmanager
async def opened_for_reading(folder: Path) -> AsyncIterator[Client]:
    with DataDir(folder) as data:
        server = EmbeddedServer(data)
        await server.start()
        client = await connect(
            ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        )
        yield client
        await disconnect(client)
        await server.stop()


async def _stored(folder: Path) -> list[bytes]:
    """The links of the records in a directory, in order; the chain is checked."""
    async with opened_for_reading(folder) as client:
        tail = await read_tail(client, "FOLDMQ_LOG_n1", "foldmq.log.n1")
        checker, links = ChainChecker(), []
        async for record in read_records(client, "FOLDMQ_LOG_n1", 1, tail.sequence):
            checker.check(record)
            links.append(record.link)
        assert len(links) == tail.sequence
    return links


def save(old: Path, new: Path, progress: Callable[[str, int, int], None] = ignore) -> SalvageResult:
    return asyncio.run(salvage(old, new, progress))


def write(folder: Path, records: list[bytes], *, noted: int | None = None, first: int = 1) -> None:
    asyncio.run(_write(folder, records, noted=noted, first=first))


def stored(folder: Path) -> list[bytes]:
    return asyncio.run(_stored(folder))


def contents(folder: Path) -> dict[str, str]:
    """All files but the locks, which hold process ids."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(".lock")
    }


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def block(folder: Path) -> Path:
    (file,) = folder.rglob("*.blk")
    return file


def flip(folder: Path, record: bytes) -> None:
    """Change a byte in the middle of a stored record."""
    data = bytearray(block(folder).read_bytes())
    data[data.index(record) + len(record) // 2] ^= 0x40
    block(folder).write_bytes(data)


@pytest.mark.parametrize("bad", [2, 6, COUNT])
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no index"])
def test_flipped_byte(old: Path, new: Path, bad: int, indexed: bool) -> None:
    """Without its index the NATS server cuts the block off at the damage."""
    records = made()
    write(old, records, noted=COUNT)
    flip(old, records[bad - 1])
    if not indexed:
        for file in old.rglob("index.db"):
            file.unlink()
    before = contents(old)
    saved = save(old, new)
    assert contents(old) == before
    assert (saved.node, saved.records, saved.entries) == ("n1", bad - 1, 2 * (bad - 1))
    assert saved.until_ms == 1_700_000_000_000 + bad - 2
    assert saved.known == COUNT
    assert saved.problem is not None
    assert saved.problem.startswith(f"record {bad} is missing or cannot be read")
    assert stored(new) == [link_of(record) for record in records[: bad - 1]]
    assert sorted(entry.name for entry in new.iterdir() if not entry.name.startswith("nats")) == [
        "foldmq.lock",
        "jetstream",
        "node",
    ]
    assert DataDir(new).node() == "n1"


def test_log_that_does_not_reach_its_watermark(old: Path, new: Path) -> None:
    records = made()
    write(old, records, noted=COUNT + 5)
    saved = save(old, new)
    assert (saved.records, saved.known) == (COUNT, COUNT + 5)
    assert saved.problem == f"record {COUNT + 1} is missing or cannot be read"
    assert stored(new) == [link_of(record) for record in records]


def test_log_that_is_not_the_one_of_its_watermark(old: Path, new: Path) -> None:
    write(old, made(), noted=7)
    Watermark(old / "log.mark", "FOLDMQ_LOG_n1").write(7, GENESIS)
    saved = save(old, new)
    assert saved.records == 6
    assert saved.problem == "record 7 is not the one that was acknowledged"


@pytest.mark.parametrize("where", [3, COUNT])
def test_broken_chain(old: Path, new: Path, where: int) -> None:
    records = made()
    records[where - 1] = made(1)[0]
    write(old, records)
    saved = save(old, new)
    assert saved.records == where - 1
    assert saved.problem == f"record {where} does not continue record {where - 1}"


@pytest.mark.parametrize("file", ["meta.inf", "meta.sum"])
def test_stream_that_the_server_does_not_recover(old: Path, new: Path, file: str) -> None:
    records = made()
    write(old, records)
    for found in old.rglob(file):
        found.write_bytes(b"nonsense")
    saved = save(old, new)
    assert (saved.records, saved.problem) == (COUNT, None)
    assert stored(new) == [link_of(record) for record in records]


def test_nothing_is_intact(old: Path, new: Path) -> None:
    records = made()
    write(old, records)
    flip(old, records[0])
    with pytest.raises(CorruptLog, match="no record before it"):
        save(old, new)
    assert not new.exists()


@pytest.mark.parametrize("later", ["format", "event"])
def test_the_log_of_a_later_version_is_not_truncated(old: Path, new: Path, later: str) -> None:
    records = made(3)
    if later == "format":
        records.append(b"FMQ\x02" + records[0][4:])
    else:
        event: Any = {"e": "Acked", "v": 2}
        link = link_of(records[-1])
        records.append(
            encode_record(previous=link, node="n1", time_ms=1, events=[event], payloads=[])
        )
    write(old, records)
    new.mkdir()
    with pytest.raises((UnknownLogFormat, UnknownEvent), match="record 4") as caught:
        save(old, new)
    assert caught.value.exit_code == 78
    assert list(new.iterdir()) == []


def test_directories_that_cannot_be_used(old: Path, new: Path, tmp_path: Path) -> None:
    with pytest.raises(NoLog, match="contains no log"):
        save(old, new)
    assert not old.exists()
    write(old, made(1))
    with pytest.raises(DataDirError, match="is inside the damaged one"):
        save(old, old / "new")
    new.mkdir()
    (new / "something").write_text("mine")
    with pytest.raises(DataDirError, match="is not empty"):
        save(old, new)
    assert (new / "something").read_text() == "mine"
    with pytest.raises(DataDirError, match="cannot be used"):
        save(old, new / "something")
    link = tmp_path / "link"
    link.symlink_to(old)
    with pytest.raises(DataDirError, match="is inside the damaged one"):
        save(old, link / "new")


def test_directory_in_use(old: Path, new: Path) -> None:
    write(old, made(1))
    with DataDir(old), pytest.raises(DataDirBusy):
        save(old, new)
    held = take_lock(old / "nats.lock")
    with pytest.raises(DataDirBusy, match="a NATS server that an earlier broker left"):
        save(old, new)
    assert held is not None
    assert not new.exists()
    with DataDir(new), pytest.raises(DataDirError, match="is not empty"):
        save(old, new)


def test_no_room(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(old, made(1))
    monkeypatch.setattr(DataDir, "free_bytes", lambda _self: 1000)
    with pytest.raises(DiskFull, match="bytes are needed"):
        save(old, new)
    assert not new.exists()


def test_a_failure_leaves_no_files(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(old, made())
    before = contents(old)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DataDirError, match=r"cannot copy .*: No space left on device"):
        save(old, new)
    assert not new.exists()
    assert contents(old) == before


def test_progress_is_reported(old: Path, new: Path) -> None:
    write(old, made())
    told: list[tuple[str, int, int]] = []
    save(old, new, lambda *what: told.append(what))
    copied = [(done, total) for what, done, total in told if what == "copying"]
    assert copied[-1][0] == copied[-1][1] > 0
    assert [(d, t) for what, d, t in told if what == "saving"] == [
        (n, COUNT) for n in range(1, COUNT + 1)
    ]


class Stream:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_one_line_on_a_terminal(terminal: bool) -> None:
    stream = Stream(terminal)
    progress = ProgressLine(stream)  # type: ignore[arg-type] # what it uses of one
    progress("copying", 1, 4)
    progress("copying", 2, 4)
    progress.close()
    assert stream.text == ("\rcopying:  25 % of 4 \r\x1b[K" if terminal else "")


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("record 3 is bad", "damage: record 3 is bad; OLD is unchanged"),
        (None, "every record in OLD is intact"),
    ],
)
def test_report(problem: str | None, line: str, tmp_path: Path) -> None:
    saved = SalvageResult("n1", 1200, 5000, 1_700_000_000_250, 1300, problem)
    old, new = tmp_path / "o", tmp_path / "n"
    assert report(saved, old, new).replace(str(old), "OLD").replace(str(new), "NEW") == (
        "kept 1,200 of 1,300 records (5,000 entries), up to 2023-11-14 22:13:20.250 UTC\n"
        f"{line}\n"
        "continue with: foldmq serve --data-dir NEW"
    )


# ------------------------------------------------------------------- a log that was cut

FIRST = 101
LINK = bytes([9]) * 32
NEEDED = position(50, 3)


class Needs:
    """A session that needs one message from before the cut."""

    def __init__(self, _begin: int) -> None:
        pass

    def take(self, record: Record) -> None:
        pass

    def before(self, _first: Position) -> dict[str, set[Position]]:
        return {"needy": {NEEDED}}

    def reset_events(self, session: str) -> list[Event]:
        return [SessionExpired(session, "salvage")]


def cut_log() -> list[bytes]:
    """Records 101 to 108: a checkpoint in the first, a message carried in 106, the cut in 107."""
    said: dict[int, list[Event]] = {
        101: [CheckpointBegun(1), CheckpointCompleted(1, position(FIRST, 0), 0, 0)],
        106: [MessagesCarried([NEEDED], ["t"], [], 4, 2, 1)],
        107: [LogCut(FIRST, LINK.hex(), 1_700_000_000_000, "keep")],
    }
    records, link = [], LINK
    for number in range(FIRST, FIRST + 8):
        records.append(
            encode_record(
                previous=link,
                node="n1",
                time_ms=1_700_000_000_000 + number,
                events=said.get(number, [BrokerStarted(str(number))]),
                payloads=[b"..%04d" % number * 20],
            )
        )
        link = link_of(records[-1])
    return records


async def _read(folder: Path) -> list[Record]:
    async with opened_for_reading(folder) as client:
        return [one async for one in read_records(client, "FOLDMQ_LOG_n1", 1, 1000)]


@pytest.mark.parametrize("bad", [None, 3, 6, 8])
def test_cut_log(old: Path, new: Path, bad: int | None) -> None:
    """The cut is on record in what is saved, and so is what was carried and can be read."""
    records = cut_log()
    write(old, records, first=FIRST)
    if bad is not None:
        flip(old, records[bad - 1])
    saved = asyncio.run(salvage(old, new, ignore, Needs))
    kept = 8 if bad is None else bad - 1
    assert (saved.records, saved.known) == (kept, 8)
    assert (saved.problem is None) == (bad is None)
    found = asyncio.run(_read(new))
    assert [one.sequence for one in found] == list(range(FIRST, FIRST + len(found)))
    assert [one.link for one in found[:kept]] == [link_of(one) for one in records[:kept]]
    checker = ChainChecker(FIRST - 1, LINK)
    for one in found:
        checker.check(one)
    events = [(one, event) for one in found for _, event in one.events()]
    (cut,) = [event for _, event in events if isinstance(event, LogCut)]
    assert (cut.first, cut.link) == (FIRST, LINK.hex())
    assert cut.reason == ("keep" if bad in (None, 8) else "salvage")
    carried = [
        (event.refs, bytes(one.payload[event.at : event.at + 4]))
        for one, event in events
        if isinstance(event, MessagesCarried)
    ]
    assert carried == ([] if bad == 6 else [([NEEDED], b"0106")])
    assert saved.emptied == (["needy"] if bad == 6 else [])
    assert [event.session for _, event in events if isinstance(event, SessionExpired)] == list(
        saved.emptied
    )


def test_cut_log_without_a_whole_checkpoint(old: Path, new: Path) -> None:
    bare = [encode_record(previous=LINK, node="n1", time_ms=1, events=[], payloads=[])]
    link = link_of(bare[0])
    cut: list[Event] = [LogCut(FIRST, LINK.hex(), 0, "keep")]
    bare.append(encode_record(previous=link, node="n1", time_ms=1, events=cut, payloads=[]))
    write(old, bare, first=FIRST)
    with pytest.raises(CorruptLog, match="no complete checkpoint precedes it"):
        save(old, new)
    assert not new.exists()


def test_records_before_the_cut_are_gone(old: Path, new: Path) -> None:
    write(old, cut_log()[2:], first=FIRST + 2)
    with pytest.raises(CorruptLog, match="record 101 and all up to 102 are gone"):
        save(old, new)
    assert not new.exists()
