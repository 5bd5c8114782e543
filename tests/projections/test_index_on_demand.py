"""A question about the past builds the index that it needs, where it may."""

import asyncio
import os
from pathlib import Path

import pytest
from indexedlogs import IndexedSource, as_log
from playedlogs import played

from cli.logs import index_writer
from cli.logs.index_writer import IndexBusy, IndexWriter, with_whole_index
from eventstore.errors import CorruptLog
from eventstore.format.records import Record
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.log_source import LogSource

MOST = 1 << 30
STEPS = [step for n in range(9) for step in (("publish", "ann", 1), ("end_turn", "ann", n))]


class _Source(IndexedSource):
    where = "NATS at elsewhere:4222"

    def __init__(self) -> None:
        super().__init__(played(STEPS, 600))

    @property
    def not_indexed(self) -> int:
        return self.last - self.index.last


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index in a data directory of this user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_writer, "_FEW_OF_OTHERS", 3)
    return tmp_path / "data" / "index" / "FOLDMQ_LOG_n"


def asked(source: _Source, place: Path) -> LogSource:
    return asyncio.run(with_whole_index(as_log(source), place, MOST))


def test_a_missing_index_is_built_in_the_data_directory(place: Path, tmp_path: Path) -> None:
    place.parent.parent.mkdir()
    indexed = asked(_Source(), place)
    assert (indexed.index.first, indexed.index.last) == (1, indexed.last)
    assert indexed.index.path == place
    assert not (tmp_path / "cache").exists()


def test_a_damaged_index_is_built_again(place: Path) -> None:
    place.parent.parent.mkdir()
    asked(_Source(), place)
    (segment,) = place.glob("*.index")
    segment.write_bytes(segment.read_bytes()[:-9])
    assert asked(_Source(), place).not_indexed == 0


def test_the_index_of_a_log_elsewhere_is_in_the_cache_of_the_user(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = asked(_Source(), place)
    assert indexed.not_indexed == 0
    assert indexed.index.path is not None
    assert indexed.index.path.is_relative_to(tmp_path / "cache" / "foldmq" / "index")
    assert not place.exists()
    monkeypatch.setattr(index_writer, "_extended", None)  # it is not built again
    assert asked(_Source(), place).index.path == indexed.index.path
    other = _Source()
    other.where = "NATS at another:4222"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_writer, "_FEW_OF_OTHERS", 3)
    assert asked(other, place).index.path != indexed.index.path


def test_the_directory_of_another_user_is_not_written_to(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.parent.parent.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    path = asked(_Source(), place).index.path
    assert path is not None
    assert path.is_relative_to(tmp_path / "cache")
    assert not place.exists()


def test_an_index_that_another_process_writes_is_left_alone(place: Path) -> None:
    place.parent.parent.mkdir()
    writer = IndexFiles(place)
    assert writer.lock()
    source = asked(_Source(), place)
    assert source.index.empty
    with pytest.raises(IndexBusy):
        asyncio.run(IndexWriter(as_log(_Source()), IndexFiles(place), MOST).open())
    writer.unlock()


def test_a_full_disk_leaves_the_log_readable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.parent.mkdir()
    monkeypatch.setattr(index_writer, "_MIN_FREE", 1 << 62)
    assert asked(_Source(), place).index.empty


def test_a_damaged_log_is_indexed_up_to_the_damage(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Damaged(_Source):
        def record(self, sequence: int) -> Record:
            if sequence == self.last - 1:
                raise CorruptLog(sequence, "has a wrong checksum")
            return super().record(sequence)

    place.parent.parent.mkdir()
    monkeypatch.setattr(index_writer, "SEGMENT_RECORDS", 2)
    indexed = asked(_Damaged(), place)
    assert 0 < indexed.index.last < indexed.last - 1
