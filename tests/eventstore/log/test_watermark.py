import os
import shutil
from pathlib import Path

import orjson
import pytest

from eventstore.errors import BadNatsOptions, CorruptLog
from eventstore.format.node_events import LogEndUnproven
from eventstore.log.watermark import Watermark

LINK = bytes(range(32))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.mark"


def test_none_is_read_before_one_was_written(file: Path) -> None:
    mark = Watermark(file, "L")
    assert mark.read() is None
    mark.check_end(0)


def test_a_stored_mark_is_read(file: Path) -> None:
    Watermark(file, "L").write(41, LINK)
    assert Watermark(file, "L").read() == (41, LINK)


def test_a_mark_of_another_stream_is_ignored(file: Path) -> None:
    Watermark(file, "L").write(41, LINK)
    other = Watermark(file, "M")
    assert other.read() is None
    other.check_end(0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"stream":"L","sequence":41',
        b'{"stream":"L","sequence":41}',
        b'{"stream":"L","sequence":null,"link":""}',
        b'{"stream":"L","sequence":41,"link":"xyz"}',
        b'{"stream":"L","sequence":41,"link":7}',
        b"\x00" * 120,
    ],
)
def test_a_torn_file_is_ignored(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    mark = Watermark(file, "L")
    assert mark.read() is None
    mark.check_end(0)


@pytest.mark.parametrize("last", [41, 42, 1000])
def test_a_log_that_reaches_the_mark_passes(file: Path, last: int) -> None:
    mark = Watermark(file, "L")
    mark.write(41, LINK)
    mark.check_end(last)


@pytest.mark.parametrize("last", [0, 1, 40])
def test_a_log_that_ends_before_the_mark_is_damaged(file: Path, last: int) -> None:
    mark = Watermark(file, "L")
    mark.write(41, LINK)
    with pytest.raises(CorruptLog, match="the log had reached record 41") as caught:
        mark.check_end(last)
    assert caught.value.sequence == last + 1


def test_the_same_record_is_not_written_twice(file: Path) -> None:
    mark = Watermark(file, "L")
    mark.write(41, LINK)
    file.write_bytes(b"")
    mark.write(41, LINK)
    assert file.read_bytes() == b""
    mark.write(42, LINK)
    assert mark.read() == (42, LINK)


def test_a_mark_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    mark = Watermark(folder / "log.mark", "L")
    mark.write(41, LINK)
    folder.mkdir()
    mark.write(41, LINK)
    assert mark.read() == (41, LINK)


def test_a_log_is_in_one_domain(file: Path) -> None:
    Watermark(file, "L").check_domain()
    Watermark(file, "L").write(41, LINK)
    Watermark(file, "L").check_domain()
    with pytest.raises(BadNatsOptions, match=r"nats_domain is hub, but .* is in domain none: set"):
        Watermark(file, "L", "hub").check_domain()
    Watermark(file, "M", "hub").check_domain()
    Watermark(file, "L", "hub").write(42, LINK)
    Watermark(file, "L", "hub").check_domain()
    assert Watermark(file, "L", "hub").read() == (42, LINK)
    with pytest.raises(BadNatsOptions, match=r"nats_domain is none, but .* is in domain hub: set"):
        Watermark(file, "L").check_domain()


def test_a_record_reported_by_another_node_is_stored(file: Path) -> None:
    Watermark(file, "L").write(41, LINK)
    mark = Watermark(file, "L")
    mark.note(40, bytes(32))
    assert mark.read() == (41, LINK)
    mark.note(43, bytes(32))
    assert mark.read() == (43, bytes(32))
    with pytest.raises(CorruptLog, match="the log had reached record 43"):
        mark.check_end(42)


def test_a_mark_stored_during_the_check_is_not_missed(file: Path) -> None:
    mark = Watermark(file, "L")
    mark.write(41, LINK)
    before = mark.read()
    mark.note(42, LINK)
    mark.check_end(41, before)


def directory(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    Watermark(made / "log.mark", "L", beside=True).write(41, LINK)
    return made


def mark_in(folder: Path) -> Watermark:
    return Watermark(folder / "log.mark", "L", beside=True)


def test_the_end_of_a_log_that_has_reached_its_mark_is_proven(tmp_path: Path) -> None:
    """Also if the mark is older: it is written without a sync."""
    folder = directory(tmp_path)
    assert not mark_in(folder).is_copy()
    for last in (41, 42):
        assert mark_in(folder).unproven_end(last, 7) is None
    with pytest.raises(CorruptLog):
        mark_in(folder).check_end(40)


def test_a_new_log_needs_no_mark(tmp_path: Path) -> None:
    assert mark_in(tmp_path).unproven_end(0, 0) is None


def test_a_log_without_a_mark_is_not_proven(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    (folder / "log.mark").write_bytes(b"")
    assert mark_in(folder).unproven_end(41, 7) == LogEndUnproven("no_watermark", 41, 7)
    (folder / "log.mark").unlink()
    assert mark_in(folder).unproven_end(41, 7) == LogEndUnproven("no_watermark", 41, 7)


@pytest.mark.parametrize("last", [30, 41, 50])
def test_a_copy_of_the_directory_is_known_as_one(tmp_path: Path, last: int) -> None:
    """Its log may have been copied before its mark. The original is still the original."""
    copy = tmp_path / "copy"
    shutil.copytree(directory(tmp_path), copy)
    mark_in(copy).check_end(last)
    assert mark_in(copy).unproven_end(last, 7) == LogEndUnproven("copy", last, 7, 41)
    assert mark_in(tmp_path / "data").unproven_end(41, 7) is None


def test_an_older_copy_in_the_place_of_the_original_is_a_copy(tmp_path: Path) -> None:
    """Its file may get the inode of the original, which is then of another generation."""
    folder = directory(tmp_path)
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    assert mark_in(folder).is_copy()


def test_a_moved_directory_is_no_copy(tmp_path: Path) -> None:
    moved = directory(tmp_path).rename(tmp_path / "moved")
    (moved / "log.mark").chmod(0o600)
    assert mark_in(moved).unproven_end(41, 7) is None


def test_a_copy_is_an_original_once_its_broker_has_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory(tmp_path), copy)
    mark_in(copy).write(31, LINK)
    assert mark_in(copy).read() == (31, LINK)
    assert mark_in(copy).unproven_end(31, 7) is None


def test_a_log_elsewhere_is_not_copied_with_its_mark(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory(tmp_path), copy)
    mark = Watermark(copy / "log.mark", "L")
    assert mark.unproven_end(41, 7) is None
    with pytest.raises(CorruptLog):
        mark.check_end(40)


def test_a_mark_of_an_earlier_version_is_no_copy(tmp_path: Path) -> None:
    """It has no identity: each one would be taken for a copy."""
    folder = directory(tmp_path)
    noted = orjson.loads((folder / "log.mark").read_bytes())
    del noted["file"]
    (folder / "log.mark").write_bytes(orjson.dumps(noted))
    assert mark_in(folder).unproven_end(41, 7) is None


@pytest.mark.parametrize("file", [[], 7, None, ["a"]])
def test_an_identity_that_cannot_be_read_proves_nothing(tmp_path: Path, file: object) -> None:
    folder = directory(tmp_path)
    noted = orjson.loads((folder / "log.mark").read_bytes())
    (folder / "log.mark").write_bytes(orjson.dumps({**noted, "file": file}))
    assert not mark_in(folder).is_copy()


def test_a_file_system_without_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path)
    shutil.copytree(folder, tmp_path / "copy")

    def refused(*_: object) -> bytes:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr("fcntl.ioctl", refused)
    assert not mark_in(folder).is_copy()
    assert mark_in(tmp_path / "copy").is_copy()


def test_a_restored_directory_is_known_until_its_broker_has_written(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    (folder / "restored").write_bytes(orjson.dumps({"stream": "L", "from": "/backup"}))
    restored = LogEndUnproven("restored", 41, 7, source="/backup")
    assert mark_in(folder).unproven_end(41, 7) == restored
    mark_in(folder).write(42, LINK)
    assert mark_in(folder).unproven_end(42, 7) is None
    assert os.listdir(folder) == ["log.mark"]  # noqa: PTH208 - the names


def test_a_new_mark_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure would leave none, or an empty one, of a log that is complete."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    mark_in(tmp_path).write(1, LINK)
    mark = mark_in(tmp_path)
    mark.write(2, LINK)
    mark.write(3, LINK)
    assert len(synced) == 1
