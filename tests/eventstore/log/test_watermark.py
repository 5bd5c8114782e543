from pathlib import Path

import pytest

from eventstore.errors import BadNatsOptions, CorruptLog
from eventstore.log import Watermark

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
