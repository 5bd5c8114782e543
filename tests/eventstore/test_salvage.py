"""Salvage of the intact part of a log whose store was damaged in every way."""

import asyncio
import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from hypothesis.strategies import DataObject
from storedlogs import (
    COUNT,
    FIRST,
    LINK,
    block,
    cut_log,
    flip,
    killed_at,
    made,
    opened_for_reading,
    stored,
    write,
)

from cli.commands.salvage import progress_bars, report
from eventstore.datadir import DataDir, take_lock
from eventstore.errors import (
    CorruptLog,
    DataDirBusy,
    DataDirError,
    DiskFull,
    NoLog,
    UnknownLogFormat,
)
from eventstore.format.event_parsing import Event, UnknownEvent
from eventstore.format.events import MessageDropped
from eventstore.format.node_events import LogCut, LogSalvaged
from eventstore.format.records import GENESIS, ChainChecker, Record, encode_record, link_of
from eventstore.log.record_reader import read_records
from eventstore.log.watermark import Watermark
from eventstore.reading import damaged_log, fresh_log
from eventstore.reading.damaged_log import SalvageResult, salvage
from eventstore.reading.salvage_plan import Hole
from projections.past.salvage_needs import SalvageNeeds
from projections.state.node_state import NodeState

pytestmark = pytest.mark.system


def ignore(_what: str, _done: int, _total: int) -> None:
    pass


def save(old: Path, new: Path, progress: Callable[[str, int, int], None] = ignore) -> SalvageResult:
    return asyncio.run(salvage(old, new, progress, SalvageNeeds))


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


def gaps(saved: SalvageResult) -> list[tuple[int, int]]:
    return [(hole.first, hole.last) for hole in saved.holes]


def check_kept(new: Path, records: list[bytes], lost: set[int]) -> None:
    """The chain of a salvaged log is whole, and every record but the lost ones is in its place."""
    found = stored(new)
    assert len(found) == len(records) + bool(lost)
    for number, record in enumerate(records, 1):
        if number not in lost:
            assert found[number - 1] == link_of(record), number


@pytest.mark.parametrize(
    ("bad", "indexed"), [(1, True), (1, False), (6, True), (COUNT, True), (COUNT, False)]
)
def test_flipped_byte(old: Path, new: Path, bad: int, indexed: bool) -> None:
    """A NATS server cuts a file without its index off at the damage."""
    records = write(old, made(), noted=COUNT)
    flip(old, records[bad - 1])
    if not indexed:
        for file in old.rglob("index.db"):
            file.unlink()
    before = contents(old)
    saved = save(old, new)
    assert contents(old) == before
    assert (saved.node, saved.records, saved.entries) == ("n1", COUNT - 1, 2 * (COUNT - 1))
    assert saved.known == COUNT
    (hole,) = saved.holes
    assert (hole.first, hole.last, hole.bytes) == (bad, bad, len(records[bad - 1]))
    assert str(hole) == f"record {bad} has a wrong checksum"
    check_kept(new, records, {bad})
    (event,) = given_up(new)
    assert (event.first, event.end, event.records) == (bad, bad, 1)
    assert event.link == ("" if bad == COUNT else link_of(records[bad - 1]).hex())
    assert (event.bytes, event.until, event.source) == (hole.bytes, COUNT, str(old))
    assert "@" in event.by
    assert sorted(entry.name for entry in new.iterdir() if not entry.name.startswith("nats")) == [
        "foldmq.lock",
        "jetstream",
        "log.mark",
        "node",
    ]
    assert DataDir(new).node() == "n1"


def given_up(folder: Path) -> list[LogSalvaged]:
    """The LogSalvaged events of a log."""
    records = asyncio.run(_read(folder))
    found = [event for one in records for _, event in one.events()]
    return [event for event in found if isinstance(event, LogSalvaged)]


@pytest.mark.parametrize(
    ("at", "damage", "said"),
    [
        (0, b"\x01", "the frames of 1 record"),
        (4, b"\x09", "the frames of 1 record"),
        (24, b"F", "the frames of 1 record"),
    ],
    ids=["length", "sequence", "subject"],
)
def test_damage_around_a_record_is_named(
    old: Path, new: Path, at: int, damage: bytes, said: str
) -> None:
    """NATS stores length, sequence and subject of a message before the record."""
    records = write(old, made(), noted=COUNT)
    data = bytearray(block(old).read_bytes())
    frame = data.index(records[5]) - 22 - len("foldmq.log.n1")
    data[frame + at] ^= damage[0]
    block(old).write_bytes(data)
    saved = save(old, new)
    assert not saved.holes
    assert f"around the records: {said}; every record is intact and kept" in report(saved, old, new)
    check_kept(new, records, set())


@pytest.mark.parametrize("how", ["no mark", "copy"])
def test_an_end_that_was_not_proven_is_not_proven_by_a_salvage(
    old: Path, new: Path, how: str
) -> None:
    write(old, made(), noted=COUNT)
    if how == "copy":
        old = Path(shutil.copytree(old, old.with_name("copy")))
    else:
        (old / "log.mark").unlink()
    said = report(save(old, new), old, new)
    assert "the end of the log is not proven: t" in said
    assert not (new / "log.mark").exists()


def test_bytes_that_belong_to_no_record_are_named(old: Path, new: Path) -> None:
    records = write(old, made(), noted=COUNT)
    block(old).write_bytes(block(old).read_bytes() + b"no message")
    saved = save(old, new)
    assert "10 bytes that belong to no record" in report(saved, old, new)
    check_kept(new, records, set())


def test_several_holes(old: Path, new: Path) -> None:
    records = write(old, made())
    for bad in (3, 4, 9):
        flip(old, records[bad - 1])
    saved = save(old, new)
    assert gaps(saved) == [(3, 4), (9, 9)]
    assert saved.records == COUNT - 3
    check_kept(new, records, {3, 4, 9})
    assert [(one.first, one.end, one.records) for one in given_up(new)] == [(3, 4, 2), (9, 9, 1)]


def test_a_salvaged_log_can_be_salvaged(old: Path, new: Path, tmp_path: Path) -> None:
    records = write(old, made())
    flip(old, records[4])
    save(old, new)
    assert not save(new, tmp_path / "again").holes
    assert stored(tmp_path / "again") == stored(new)
    flip(new, records[7])
    assert gaps(save(new, tmp_path / "third")) == [(8, 8)]
    assert [one.first for one in given_up(tmp_path / "third")] == [5, 8]


@pytest.mark.slow
@given(data=strategies.data())
@settings(
    max_examples=min(60, settings().max_examples // 2),  # each starts two servers
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
def test_any_byte(store: tuple[Path, list[bytes]], data: DataObject) -> None:
    """Whatever byte of the store changes: at most the record around it is given up."""
    folder, records = store
    file = block(folder)
    before = file.read_bytes()
    at = data.draw(strategies.integers(0, len(before) - 1))
    changed = bytearray(before)
    changed[at] ^= 1 << data.draw(strategies.integers(0, 7))
    file.write_bytes(changed)
    # the frame of each record, behind which its successor's begins
    size = len(before) // len(records)
    new = folder.with_name("salvaged")
    try:
        saved = save(folder, new)
        bad = min(at // size, len(records) - 1) + 1
        assert gaps(saved) in ([], [(bad, bad)])
        check_kept(new, records, {bad} if saved.holes else set())
    finally:
        file.write_bytes(before)
        shutil.rmtree(new, ignore_errors=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    folder = tmp_path_factory.mktemp("store") / "old"
    records = write(folder, made(9))
    return folder, records


def test_log_that_does_not_reach_its_watermark(old: Path, new: Path) -> None:
    records = write(old, made(), noted=COUNT + 5)
    saved = save(old, new)
    assert (saved.records, saved.known) == (COUNT, COUNT + 5)
    assert (
        str(saved.holes[0]) == f"records {COUNT + 1} to {COUNT + 5}: record {COUNT + 1} is missing"
    )
    assert stored(new)[:COUNT] == [link_of(record) for record in records]


def test_log_that_is_not_the_one_of_its_watermark(old: Path, new: Path) -> None:
    write(old, made(), noted=7)
    Watermark(old / "log.mark", "FOLDMQ_LOG_n1").write(7, GENESIS)
    saved = save(old, new)
    assert saved.records == 6
    assert str(saved.holes[0]) == "record 7 is not the one that was acknowledged"


@pytest.mark.parametrize("where", [3, COUNT])
def test_broken_chain(old: Path, new: Path, where: int) -> None:
    records = made()
    records[where - 1] = made(1)[0]
    write(old, records)
    saved = save(old, new)
    assert saved.records == COUNT - 1
    assert [str(hole) for hole in saved.holes] == [
        f"record {where} does not continue record {where - 1}"
    ]


@pytest.mark.parametrize("cut", [1, 1000])
def test_file_that_was_cut_short(old: Path, new: Path, cut: int) -> None:
    records = write(old, made(), noted=COUNT)
    data = block(old).read_bytes()
    block(old).write_bytes(data[:-cut])
    saved = save(old, new)
    # one byte less costs nothing but the server's checksum
    ends = [data.index(record) + len(record) for record in records]
    assert saved.records == sum(end <= len(data) - cut for end in ends)
    assert saved.known == COUNT


def test_file_without_its_beginning(old: Path, new: Path) -> None:
    records = write(old, made())
    data = block(old).read_bytes()
    size = len(data) // COUNT
    block(old).write_bytes(data[size * 3 + size // 2 :])
    saved = save(old, new)
    assert gaps(saved) == [(1, 4)]
    check_kept(new, records, {1, 2, 3, 4})


@pytest.mark.parametrize("file", ["meta.inf", "meta.sum"])
def test_stream_that_the_server_does_not_recover(old: Path, new: Path, file: str) -> None:
    records = write(old, made())
    for found in old.rglob(file):
        found.write_bytes(b"nonsense")
    saved = save(old, new)
    assert (saved.records, saved.holes) == (COUNT, [])
    assert stored(new) == [link_of(record) for record in records]


def test_nothing_is_intact(old: Path, new: Path) -> None:
    records = write(old, made(2))
    for record in records:
        flip(old, record)
    with pytest.raises(CorruptLog, match="no intact record"):
        save(old, new)
    assert not new.exists()


@pytest.mark.parametrize("later", ["format", "continued", "event"])
def test_the_log_of_a_later_version_is_not_truncated(old: Path, new: Path, later: str) -> None:
    records = made(3)
    if later == "format":
        records.append(b"FMQ\x03" + records[0][4:])
    elif later == "continued":
        records = made(4)
        records[3] = b"FMQ\x03" + records[3][4:]
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
    with DataDir(new), pytest.raises(DataDirBusy):
        save(old, new)


def test_no_room(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(old, made(1))
    monkeypatch.setattr(DataDir, "free_bytes", lambda _self: 1000)
    with pytest.raises(DiskFull, match="bytes are needed"):
        save(old, new)
    assert not new.exists()


def test_compressed_store(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server reads a copy of a store that it has compressed."""
    records = write(old, made(), noted=COUNT)
    flip(old, records[5])
    monkeypatch.setattr(damaged_log, "is_compressed", lambda *_: True)
    before = contents(old)
    saved = save(old, new)
    assert contents(old) == before
    assert saved.known == COUNT
    assert gaps(saved) == [(6, 6)]


def test_a_failure_leaves_no_files(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(old, made())
    before = contents(old)

    def full(*_: object) -> None:
        raise DiskFull("the disk")

    monkeypatch.setattr(fresh_log, "finish_directory", full)
    monkeypatch.setattr(damaged_log, "finish_directory", full)
    with pytest.raises(DiskFull):
        save(old, new)
    assert not new.exists()
    assert contents(old) == before


@pytest.mark.parametrize(
    ("where", "name", "calls"),
    [
        ("eventstore.reading.damaged_log", "Plan", 1),
        ("eventstore.reading.fresh_log", "FreshLog.append", 5),
        ("eventstore.reading.damaged_log", "finish_directory", 1),
    ],
)
def test_a_salvage_that_is_killed(old: Path, new: Path, where: str, name: str, calls: int) -> None:
    """No broker starts on what it left, and the next salvage begins again."""
    write(old, made())
    killed_at(where, name, calls, "salvage", "--data-dir", str(old), "--to", str(new))
    with pytest.raises(DataDirError, match="is incomplete, because"):
        DataDir(new).node()
    assert save(old, new).records == COUNT
    assert DataDir(new).node() == "n1"
    assert not DataDir(new).unfinished.exists()


def test_progress_is_reported(old: Path, new: Path) -> None:
    write(old, made())
    told: list[tuple[str, int, int]] = []
    save(old, new, lambda *what: told.append(what))
    assert ("reading", 1, 1) in told
    assert [(d, t) for what, d, t in told if what == "saving"] == [
        (n, COUNT) for n in range(1, COUNT + 1)
    ]


def test_progress_has_a_bar_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    @contextlib.contextmanager
    def bar(what: str, total: int, _unit: str) -> Iterator[Callable[[int], None]]:
        yield lambda finished: shown.append((what, finished, total))
        shown.append(what)

    monkeypatch.setattr("cli.commands.salvage.progress", bar)
    with progress_bars() as update:
        for step in (("copying", 1, 4), ("copying", 2, 4), ("saving", 1, 9), ("copying", 3, 4)):
            update(*step)  # what is saved is read again, though its bar is gone
    assert shown == [("copying", 1, 4), ("copying", 2, 4), "copying", ("saving", 1, 9), "saving"]


@pytest.mark.parametrize(
    ("holes", "line"),
    [
        (
            [Hole(3, 102, "", 9000, "is bad")],
            (
                "given up: 100 records, 9,000 bytes: records 3 to 102: record 3 is bad\n"
                "OLD is unchanged; the new log says what was given up: foldmq log --data-dir NEW "
                "--type LogSalvaged"
            ),
        ),
        (
            [],
            (
                "every record in OLD is intact; the times, checksums and indexes that NATS keeps "
                "of them were not checked: the new directory has new ones"
            ),
        ),
    ],
)
def test_report(holes: list[Hole], line: str, tmp_path: Path) -> None:
    saved = SalvageResult("n1", 1200, 5000, 1_700_000_000_250, 1300, holes)
    old, new = tmp_path / "o", tmp_path / "n"
    shown = report(saved, old, new).replace(str(old), "OLD").replace(str(new), "NEW")
    assert re.sub(r"\S*foldmq (log|serve)", r"foldmq \1", shown) == (
        "kept 1,200 of 1,300 records (5,000 entries), up to 2023-11-14 22:13:20.250 UTC\n"
        f"{line}\n"
        "continue with: foldmq serve --data-dir NEW"
    )


# ------------------------------------------------------------------- a log that was cut


async def _read(folder: Path) -> list[Record]:
    async with opened_for_reading(folder) as client:
        return [one async for one in read_records(client, "FOLDMQ_LOG_n1", 1, 1000)]


@pytest.mark.parametrize("bad", [None, 1, 6, 7, 8])
def test_cut_log(old: Path, new: Path, bad: int | None) -> None:
    """The cut is recorded in what is saved, and sessions need no message that was lost."""
    records = write(old, cut_log(), first=FIRST)
    if bad is not None:
        flip(old, records[bad - 1])
    saved = save(old, new)
    assert (saved.records, saved.known) == (8 if bad is None else 7, 8)
    assert saved.stateless == (bad == 1)
    found = asyncio.run(_read(new))
    assert [one.sequence for one in found] == list(range(FIRST, FIRST + len(found)))
    checker = ChainChecker(FIRST - 1, LINK)
    for one in found:
        checker.check(one)
    events = [event for one in found for _, event in one.events()]
    (cut,) = [event for event in events if isinstance(event, LogCut)]
    assert (cut.first, cut.link) == (FIRST, LINK.hex())
    assert cut.reason == ("salvage" if bad == 7 else "keep")
    dropped = [event for event in events if isinstance(event, MessageDropped)]
    wanted = bad == 6
    assert [event.session for event in dropped] == ["needy"] * wanted
    assert saved.dropped == wanted
    state = NodeState(FIRST)
    for one in found:
        state.apply_record(one)
    waiting = state.sessions.peek("needy")
    if bad == 1:
        assert waiting is None
    else:
        assert waiting is not None
        assert waiting.queued == waiting.queued_bytes / 4 == (not wanted)


def test_cut_log_without_a_whole_checkpoint(old: Path, new: Path) -> None:
    bare = [encode_record(previous=LINK, node="n1", time_ms=1, events=[], payloads=[])]
    link = link_of(bare[0])
    cut: list[Event] = [LogCut(FIRST, LINK.hex(), 0, "keep")]
    bare.append(encode_record(previous=link, node="n1", time_ms=1, events=cut, payloads=[]))
    write(old, bare, first=FIRST)
    with pytest.raises(CorruptLog, match="no complete checkpoint follows it"):
        save(old, new)
    assert not new.exists()


def test_records_before_the_cut_are_gone(old: Path, new: Path) -> None:
    write(old, cut_log()[2:], first=FIRST + 2)
    saved = save(old, new)
    assert gaps(saved) == [(FIRST, FIRST + 1)]
    assert saved.stateless
