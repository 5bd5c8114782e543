"""Backups of a log: complete, checked, continued in place, and restored record by record."""

import asyncio
import io
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from harness.waiting import TIMEOUT
from storedlogs import (
    COUNT,
    FIRST,
    cut_log,
    flip,
    killed_at,
    made,
    opened_for_reading,
    stored,
    write,
)

from eventstore.datadir import DataDir
from eventstore.errors import CorruptLog, DataDirBusy, DataDirError, NoLog, UsageError
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import LogCut
from eventstore.format.records import encode_record, link_of
from eventstore.reading.backup_files import MANIFEST, BadBackup
from eventstore.reading.log_backup import (
    RESTORED,
    BackupResult,
    NoContinuation,
    RestoreResult,
    back_up,
    restore,
)
from eventstore.reading.log_source import LogSource, open_log
from eventstore.reading.progress import silent

pytestmark = pytest.mark.system


def backed_up(
    folder: Path, target: Path | IO[bytes], logs: tuple[str, ...] = ("n1",)
) -> BackupResult:
    async def run() -> BackupResult:
        async with opened_for_reading(folder) as client:
            sources: dict[str, LogSource] = {
                log: await open_log(client, f"FOLDMQ_LOG_{log}", "here", live=False) for log in logs
            }
            return await back_up(sources, target, str(target), "1", 5, silent)

    return asyncio.run(run())


def restored(source: Path | IO[bytes], target: Path, *, new_node: bool = False) -> RestoreResult:
    return asyncio.run(restore(source, target, silent, new_node=new_node))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def test_there_and_back(node: Path, place: Path, new: Path) -> None:
    records = write(node, made())
    done = backed_up(node, place)
    assert done.added == COUNT
    back = restored(place, new)
    assert (back.node, back.records) == ("n1", COUNT)
    assert stored(new) == [link_of(one) for one in records]
    assert DataDir(new).node() == "n1"
    assert link_of(records[-1]).hex() in (new / RESTORED).read_text()
    assert not (new / "log.mark").exists()


def test_only_new_records_are_added(node: Path, place: Path, new: Path) -> None:
    records = made()
    write(node, records[:5])
    assert backed_up(node, place).added == 5
    assert backed_up(node, place).added == 0
    write(node, records[5:])
    assert backed_up(node, place).added == COUNT - 5
    restored(place, new)
    assert stored(new) == [link_of(one) for one in records]
    assert len(list(place.glob("*.records"))) == 1  # small parts are joined


def test_a_stream(node: Path, new: Path, tmp_path: Path) -> None:
    write(node, made())
    stream = io.BytesIO()
    assert backed_up(node, stream).added == COUNT
    assert restored(io.BytesIO(stream.getvalue()), new).records == COUNT
    archive = tmp_path / "x.tar"
    archive.write_bytes(stream.getvalue())
    assert restored(archive, tmp_path / "other").records == COUNT
    for size in (0, 10, 700, len(stream.getvalue()) // 2):
        target = tmp_path / f"short {size}"
        with pytest.raises(BadBackup, match=r"truncated|no tar"):
            restored(io.BytesIO(stream.getvalue()[:size]), target)
        assert not target.exists()


def test_as_another_node(node: Path, place: Path, new: Path) -> None:
    write(node, made())
    backed_up(node, place)
    back = restored(place, new, new_node=True)
    assert DataDir(new).node() == back.node != "n1"
    assert list(new.rglob(f"FOLDMQ_LOG_{back.node}"))


def test_several_logs_keep_their_node(node: Path, place: Path, new: Path) -> None:
    """Their records name each other by the node: under another one messages would come twice."""
    logs = ("n1-p0", "n1-p1")
    for log in logs:
        write(node, made(), log=log)
    backed_up(node, place, logs)
    stream = io.BytesIO()
    backed_up(node, stream, logs)
    for source in (place, io.BytesIO(stream.getvalue())):
        with pytest.raises(UsageError, match="cannot be restored as another node"):
            restored(source, new, new_node=True)
        assert not new.exists()
    assert restored(place, new).manifest.several == 2


def test_a_log_that_was_cut(node: Path, place: Path, new: Path) -> None:
    write(node, cut_log(), first=FIRST)
    done = backed_up(node, place)
    assert (done.manifest.logs[0].first, done.added) == (FIRST, 8)
    assert restored(place, new).records == 8


def test_records_that_were_cut_off_stay_in_the_backup(node: Path, place: Path, new: Path) -> None:
    records = write(node, made(9))
    backed_up(node, place)
    cut: list[Event] = [LogCut(5, link_of(records[3]).hex(), 0, "keep")]
    records.append(
        encode_record(previous=link_of(records[8]), node="n1", time_ms=1, events=cut, payloads=[])
    )
    write(node, records[9:], first=5)
    assert backed_up(node, place).added == 1
    restored(place, new)
    assert stored(new) == [link_of(one) for one in records]


@pytest.mark.parametrize("what", ["other", "shorter", "gap"])
def test_a_log_that_does_not_continue_the_backup(
    node: Path, place: Path, tmp_path: Path, what: str
) -> None:
    write(node, made()[:6])
    backed_up(node, place)
    before = (place / MANIFEST).read_bytes()
    records, first = (
        (cut_log()[:7], 1) if what == "other" else (made()[:3], 1) if what == "shorter"
        else (made()[8:], 9)
    )  # fmt: skip
    write(tmp_path / "second", records, first=first)
    with pytest.raises((NoContinuation, CorruptLog)):
        backed_up(tmp_path / "second", place)
    assert (place / MANIFEST).read_bytes() == before


def test_a_damaged_log_is_not_backed_up(node: Path, place: Path) -> None:
    records = write(node, made())
    flip(node, records[6])
    with pytest.raises(CorruptLog):
        backed_up(node, place)
    assert not (place / MANIFEST).exists()


def test_a_damaged_backup(node: Path, place: Path, new: Path) -> None:
    records = write(node, made())
    backed_up(node, place)
    (segment,) = place.glob("*.records")
    data = bytearray(segment.read_bytes())
    data[data.index(records[6]) + 100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(BadBackup, match=r"record 7 has a wrong checksum.*log n1 up to record 6"):
        restored(place, new)
    assert not new.exists()
    segment.write_bytes(data[:-30])
    segment.rename(segment.with_name("x"))
    with pytest.raises(BadBackup, match="is missing"):
        restored(place, new)
    (place / MANIFEST).write_text("{}")
    with pytest.raises(BadBackup, match="is damaged"):
        restored(place, new)
    (place / MANIFEST).write_text('{"format": 3}')
    with pytest.raises(BadBackup, match="use a later foldmq"):
        restored(place, new)


def test_places_that_cannot_be_used(node: Path, place: Path, new: Path, tmp_path: Path) -> None:
    with pytest.raises(NoLog, match="does not exist"):
        restored(place, new)
    place.mkdir()
    with pytest.raises(NoLog, match="contains no backup"):
        restored(place, new)
    write(node, made(2))
    (place / "mine").write_text("")
    with pytest.raises(DataDirError, match="contains mine"):
        backed_up(node, place)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError):
        backed_up(node, tmp_path / "file")
    (place / "mine").unlink()
    backed_up(node, place)
    with DataDir(place), pytest.raises(DataDirBusy):
        backed_up(node, place)
    with pytest.raises(DataDirError, match="is not empty"):
        restored(place, node)


@pytest.mark.parametrize("name", ["add", "finish"])
def test_an_interrupted_backup_leaves_the_one_before(
    node: Path, place: Path, new: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Everything but the manifest may be there, or nothing new."""
    records = made()
    write(node, records[:5])
    backed_up(node, place)
    write(node, records[5:])

    def fails(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(f"eventstore.reading.backup_files.BackupDirectory.{name}", fails)
        with pytest.raises(InterruptedError):
            backed_up(node, place)
    assert restored(place, new).records == 5
    assert backed_up(node, place).added == COUNT - 5


@pytest.mark.parametrize(
    ("where", "name", "calls"),
    [
        ("eventstore.reading.fresh_log", "work_directory", 1),
        ("eventstore.reading.fresh_log", "FreshLog.append", 5),
        ("eventstore.reading.fresh_log", "_sync", 1),
        ("eventstore.reading.log_backup", "finish_directory", 1),
    ],
)
def test_a_restore_that_is_killed(
    node: Path, place: Path, new: Path, where: str, name: str, calls: int
) -> None:
    """No broker starts on what it left, and the next restore begins again."""
    records = write(node, made())
    backed_up(node, place)
    killed_at(where, name, calls, "restore", str(place), "--data-dir", str(new))
    words = [sys.executable, "-m", "cli.main", "serve", "--listen", "127.0.0.1:0"]
    started = subprocess.run(
        [*words, "--data-dir", str(new)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert started.returncode == 73
    assert "'foldmq restore', 'salvage' or 'import' was interrupted: run" in started.stderr
    assert not (new / "node").exists()
    (new / "mine").write_text("")
    with pytest.raises(DataDirError, match="is not empty"):
        restored(place, new)
    (new / "mine").unlink()
    assert restored(place, new).records == COUNT
    assert stored(new) == [link_of(one) for one in records]
    assert not DataDir(new).unfinished.exists()


def test_a_restore_that_is_killed_when_it_is_complete(node: Path, place: Path, new: Path) -> None:
    """The node id comes last: what is left behind it takes no room and stops no broker."""
    records = write(node, made())
    backed_up(node, place)
    killed_at("pathlib", "Path.rmdir", 1, "restore", str(place), "--data-dir", str(new))
    assert not list(DataDir(new).unfinished.iterdir())
    assert DataDir(new).node() == "n1"
    with pytest.raises(DataDirError, match="is not empty"):
        restored(place, new)
    assert stored(new) == [link_of(one) for one in records]


@pytest.mark.parametrize("name", ["add", "finish"])
def test_a_backup_that_is_killed(node: Path, place: Path, new: Path, name: str) -> None:
    """The one before can be restored, and the next run completes it."""
    records = made()
    write(node, records[:5])
    backed_up(node, place)
    write(node, records[5:])
    words = ["backup", str(place), "--data-dir", str(node)]
    killed_at("eventstore.reading.backup_files", f"BackupDirectory.{name}", 1, *words)
    (place / "n1.1-9.records").write_bytes(b"the first bytes of a segment")
    assert restored(place, new).records == 5
    assert backed_up(node, place).added == COUNT - 5
    assert len(list(place.glob("*.records"))) == 1


def test_a_backup_without_new_records_writes_no_records(node: Path, place: Path) -> None:
    """It may be killed meanwhile: what the manifest names stays as it is."""
    write(node, made())
    backed_up(node, place)
    (segment,) = place.glob("*.records")
    before = segment.stat()
    assert backed_up(node, place).added == 0
    after = segment.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
