"""The keys that the leaders of a cluster make, in a directory that its nodes share."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from eventstore.log import shared_keys
from eventstore.log.key_file import KEYS_AHEAD, KeyDamaged, KeyFileError, KeyReader, copy_keys
from eventstore.log.shared_keys import Keys, check_directory, open_keys, watch_directory


def made(path: Path, node: str, epoch: int) -> Keys:
    keys = Keys(path, node, epoch, is_shared=True)
    keys.extend()
    return keys


def test_each_leader_makes_keys_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    (tmp_path / "keys.erase-1").write_bytes(b"")
    first, second = made(path, "c1", 1), made(path, "c1", 12)
    one, twelve = 1_000_000_001, 12_000_000_001
    assert [each.name for each in sorted(tmp_path.iterdir())] == [
        "keys.e1",
        "keys.e12",
        "keys.erase-1",
    ]
    assert second.ranges == [range(one, one + KEYS_AHEAD), range(twelve, twelve + KEYS_AHEAD)]
    assert (first.end, second.end) == (one + KEYS_AHEAD, twelve + KEYS_AHEAD)
    assert second.key(one) == first.key(one)
    assert first.key(twelve) is None
    assert first.is_damaged(twelve)
    reader = KeyReader(path, "c1")
    assert [reader.key(number) for number in (one, twelve)] == [second.key(one), second.key(twelve)]
    first.extend()  # a leader that does not know yet that it was replaced
    assert reader.key(twelve) == second.key(twelve)
    assert reader.key(one + KEYS_AHEAD) == first.key(one + KEYS_AHEAD)


def test_a_key_of_an_earlier_leader_is_erased_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first, second = made(path, "c1", 1), made(path, "c1", 2)
    numbers = [1_000_000_001, 1_000_000_003, 2_000_000_001]
    gone = [second.key(number) for number in numbers]
    second.erase(numbers, 4)
    first.erase(numbers[:2], 4)  # both leaders do what is in the log
    reader = KeyReader(path, "c1")
    for keys in (second, Keys(path, "c1", 3, is_shared=True)):
        assert [keys.erasure(number) for number in numbers] == [4, 4, 4]
        assert keys.last_erasure == 4
        assert keys.key(1_000_000_002) is not None
    assert [reader.key(number) for number in numbers] == [None] * 3
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert not any(key in stored for key in gone if key is not None)


def test_a_file_that_is_missing_or_of_another_cluster_is_said(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made(path, "c1", 1).close()
    with pytest.raises(KeyFileError, match=r"keys\.e2: cannot be opened: No such file"):
        KeyReader(path, "c1").key(2_000_000_001)
    with pytest.raises(KeyDamaged, match="key 1000009999 is missing or damaged"):
        KeyReader(path, "c1").key(1_000_009_999)
    with pytest.raises(KeyFileError, match="is the file of node c1"):
        Keys(path, "c2", 2, is_shared=True)
    with pytest.raises(KeyFileError, match="all nodes of the cluster share"):
        check_directory(tmp_path / "none" / "keys")
    check_directory(path)


def test_keys_of_a_missing_file_are_not_erased(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys", "c1", 2)
    with pytest.raises(KeyFileError, match=r"keys\.e1: is missing, so that its keys cannot"):
        keys.erase([2_000_000_001, 1_000_000_001], 4)
    assert keys.key(2_000_000_001) is not None


@pytest.mark.parametrize("size", [0, 3, 50, 128])
@pytest.mark.parametrize("is_text", [False, True])
def test_a_file_that_a_crash_cut_off_blocks_no_leader(
    size: int, tmp_path: Path, *, is_text: bool
) -> None:
    path = tmp_path / "keys"
    made(path, "c1", 1).close()
    head = (tmp_path / "keys.e1").read_bytes()[:128]
    begun = head[: size // 2] if is_text else b""
    (tmp_path / "keys.e2").write_bytes(begun.ljust(size, b"\0"))
    copy_keys(path, tmp_path / "copy", "c2")
    with capture_logs() as lines:
        for epoch in (3, 4, 2):
            made(path, "c1", epoch).close()
    assert [line["event"] for line in lines] == ["a file of keys was not finished"] * bool(size)
    assert KeyReader(path, "c1").key(2_000_000_001) is not None


def test_a_file_with_keys_and_a_damaged_head_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made(path, "c1", 1).close()
    data = (tmp_path / "keys.e1").read_bytes()
    (tmp_path / "keys.e1").write_bytes(bytes(128) + data[128:])
    with pytest.raises(KeyFileError, match="is not a file with keys"):
        Keys(path, "c1", 2, is_shared=True)


def test_a_log_keeps_its_keys_when_it_moves_to_a_cluster_and_back(tmp_path: Path) -> None:
    path = tmp_path / "7"  # also a number
    single = open_keys(path, "n1", None)
    single.extend()
    single.close()
    numbers = [1, 1_000_000_001, 3_000_000_001]
    made(path, "n1", 1).close()
    with (tmp_path / "7.e1").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(KeyFileError, match=r"7\.e1: another broker uses it"):
            open_keys(path, "n1", None)
        leader = made(path, "n1", 3)  # it waits for no lock
    kept = [leader.key(number) for number in numbers]
    assert None not in kept
    leader.close()
    back = open_keys(path, "n1", None)
    assert [back.key(number) for number in numbers] == kept
    assert back.end == numbers[-1] + KEYS_AHEAD
    back.extend()
    back.erase(numbers, 5)
    assert [back.key(number) for number in numbers] == [None] * 3
    back.close()
    copy_keys(path, tmp_path / "copy", "n2")
    copy = open_keys(tmp_path / "copy", "n2", None)
    assert copy.key(3_000_000_001 + KEYS_AHEAD) is not None
    assert [copy.erasure(number) for number in numbers] == [5, 5, 5]


def test_a_directory_without_the_leaders_keys_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_keys, "_LOOK_EVERY", 0.0)
    epochs = iter([0, 1, 1, 2, 2, 2])
    made(tmp_path / "keys", "c1", 1).close()
    with capture_logs() as lines:
        asyncio.run(watch_directory(tmp_path / "keys", lambda: next(epochs)))
    (line,) = lines
    assert "this node cannot take over" in line["event"]
