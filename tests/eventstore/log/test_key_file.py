"""The file with the keys of sealed contents."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from eventstore.format.sealing import AreaSeal, content_cipher
from eventstore.log import shared_keys
from eventstore.log.key_file import (
    KEYS_AHEAD,
    KeyDamaged,
    KeyFileError,
    KeyReader,
    copy_keys,
)
from eventstore.log.shared_keys import Keys


def test_keys_differ_and_are_there_again(tmp_path: Path) -> None:
    file = Keys(tmp_path / "keys", "n1")
    assert file.end == 1
    assert file.key(1) is None
    assert file.is_damaged(1)
    file.extend()
    assert file.end == 1 + KEYS_AHEAD
    keys = [file.key(number) for number in range(1, file.end)]
    assert None not in keys
    assert len(set(keys)) == KEYS_AHEAD
    file.close()
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    again = Keys(tmp_path / "keys", "n1")
    assert [again.key(number) for number in range(1, again.end)] == keys
    again.extend()
    assert again.key(KEYS_AHEAD) == keys[-1]
    assert again.key(KEYS_AHEAD + 1) not in keys
    again.close()


def test_an_erased_key_is_nowhere_in_the_file(tmp_path: Path) -> None:
    file = Keys(tmp_path / "keys", "n1")
    file.extend()
    gone, other = file.key(7), file.key(8)
    assert gone is not None
    assert other is not None
    file.erase([7, KEYS_AHEAD + 9], 3)
    file.erase([7], 4)  # repeated: the first one counts
    assert file.key(7) is None
    assert file.erasure(7) == 3
    assert not file.is_damaged(7)
    assert file.erasure(8) == 0
    file.close()
    data = (tmp_path / "keys").read_bytes()
    assert gone not in data
    assert other in data
    again = Keys(tmp_path / "keys", "n1")
    assert (again.key(7), again.erasure(7), again.key(8)) == (None, 3, other)
    again.close()


SLOT, HEAD = 64, 128


def flipped(data: bytearray, random: Random) -> None:
    at = HEAD + random.randrange(8 * SLOT)
    data[at] ^= 1 << random.randrange(8)


def exchanged(data: bytearray, random: Random) -> None:
    one, two = (HEAD + SLOT * number for number in random.sample(range(8), 2))
    data[one : one + SLOT], data[two : two + SLOT] = data[two : two + SLOT], data[one : one + SLOT]


def repeated(data: bytearray, random: Random) -> None:
    one, two = (HEAD + SLOT * number for number in random.sample(range(8), 2))
    data[one : one + SLOT] = data[two : two + SLOT]


def emptied(data: bytearray, random: Random) -> None:
    at = HEAD + SLOT * random.randrange(8)
    data[at : at + SLOT] = bytes(SLOT)


def shortened(data: bytearray, random: Random) -> None:
    del data[HEAD + random.randrange(8 * SLOT) :]


def shifted(data: bytearray, random: Random) -> None:
    at = HEAD + SLOT * random.randrange(7)
    del data[at : at + SLOT]


def taken_from_elsewhere(data: bytearray, random: Random) -> None:
    at = HEAD + SLOT * random.randrange(8)
    data[at : at + 32] = random.randbytes(32)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "mutate",
    [flipped, exchanged, repeated, emptied, shortened, shifted, taken_from_elsewhere],
    ids=lambda mutate: mutate.__name__,
)
def test_a_changed_file_has_no_other_keys_and_no_other_erasures(
    tmp_path: Path, mutate: Callable[[bytearray, Random], None], seed: int
) -> None:
    path = tmp_path / "keys"
    file = Keys(path, "n1")
    file.extend()
    file.erase([3, 5], 1)
    numbers = range(1, 9)
    before = {number: (file.key(number), file.erasure(number)) for number in numbers}
    file.close()
    data = bytearray(path.read_bytes())
    whole = bytes(data)
    mutate(data, Random(seed))
    path.write_bytes(data)
    changed = Keys(path, "n1")
    reader = KeyReader(path, "n1")
    for number in numbers:
        found = changed.key(number), changed.erasure(number)
        assert found in (before[number], (None, 0))
        assert changed.is_damaged(number) is (found == (None, 0))
        assert changed.cipher(number) is None or found == before[number]
        if changed.is_damaged(number):
            with pytest.raises(KeyDamaged):
                reader.key(number)
        else:
            assert reader.key(number) == before[number][0]
    assert bytes(data) == whole or any(map(changed.is_damaged, range(1, 1 + KEYS_AHEAD)))
    assert changed.last_erasure in (0, 1)
    changed.close()


def test_the_cipher_of_an_erased_key_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_keys, "_CIPHERS", 2)
    file = Keys(tmp_path / "keys", "n1")
    file.extend()
    one, two = file.cipher(1), file.cipher(2)
    assert None is not one is not two is not None
    assert (file.cipher(1), file.cipher(2)) == (one, two)
    file.erase([2], 1)
    assert (file.cipher(1), file.cipher(2)) == (one, None)
    assert None not in [file.cipher(number) for number in (3, 4, 5, 6)]
    assert len(file._ciphers) <= 2
    assert file.cipher(KEYS_AHEAD + 1) is None
    assert AreaSeal(bytes(16), file.cipher).turned(2, 0, b"secret") == b"sealed"
    file.close()


def test_a_cipher_that_is_made_while_its_key_is_erased_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Keys(tmp_path / "keys", "n1")
    file.extend()

    def slow(key: bytes) -> object:
        file.erase([7], 1)
        return content_cipher(key)

    monkeypatch.setattr(shared_keys, "content_cipher", slow)
    assert file.cipher(7) is None
    assert file._ciphers == {}
    file.close()


def test_a_damaged_key_is_neither_a_key_nor_erased(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file = Keys(path, "n1")
    file.extend()
    file.erase([2], 1)
    file.close()
    whole = path.read_bytes()
    for number in (1, 2):
        for at in range(64):
            data = bytearray(whole)
            data[128 + 64 * (number - 1) + at] ^= 1
            path.write_bytes(data)
            file = Keys(path, "n1")
            assert file.is_damaged(number)
            assert file.key(number) is None
            assert file.erasure(number) == 0
            file.close()


def test_a_torn_end_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file = Keys(path, "n1")
    file.extend()
    file.close()
    path.write_bytes(path.read_bytes()[:-100])
    file = Keys(path, "n1")
    assert file.end == KEYS_AHEAD - 1
    file.extend()
    assert file.key(KEYS_AHEAD - 1) is not None
    file.close()


def test_an_erasure_that_failed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Keys(tmp_path / "keys", "n1")
    file.extend()
    lost = (tmp_path / "keys").read_bytes()
    key = file.key(3)
    assert key is not None

    def fail(_: int) -> None:
        (tmp_path / "keys").write_bytes(lost)  # as Linux: the pages are clean, but not on disk
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", fail)
        with pytest.raises(KeyFileError, match="I/O error"):
            file.erase([3], 1)
    assert key in (tmp_path / "keys").read_bytes()
    file.erase([3], 1)
    assert key not in (tmp_path / "keys").read_bytes()
    assert file.last_erasure == 1
    file.close()


def test_other_files_and_other_nodes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    Keys(path, "n1").close()
    with pytest.raises(KeyFileError, match="is the file of node n1"):
        Keys(path, "n2")
    path.write_bytes(b"hello")
    with pytest.raises(KeyFileError, match="is not a file with keys"):
        Keys(path, "n1")
    assert path.read_bytes() == b"hello"
    with pytest.raises(KeyFileError, match="none does not exist: create it"):
        Keys(tmp_path / "none" / "keys", "n1")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="cannot be opened"):
        Keys(path, "n1")


def test_one_broker_uses_it_at_a_time(tmp_path: Path) -> None:
    file = Keys(tmp_path / "keys", "n1")
    with pytest.raises(KeyFileError, match="another broker uses it"):
        Keys(tmp_path / "keys", "n1")
    file.close()
    Keys(tmp_path / "keys", "n1").close()


def test_another_process_sees_keys_that_are_made_and_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file = Keys(path, "n1")
    reader = KeyReader(path, "n1")
    with pytest.raises(KeyDamaged, match="key 1 is missing or damaged, and was not erased"):
        reader.key(1)
    file.extend()
    assert reader.key(7) == file.key(7) is not None
    file.erase([7], 3)
    assert reader.key(7) is None
    assert reader.key(8) == file.key(8)
    file.close()
    with pytest.raises(KeyFileError, match="is not the file of node n2"):
        KeyReader(path, "n2").key(1)
    with pytest.raises(KeyFileError, match="cannot be opened: No such file"):
        KeyReader(tmp_path / "none", "n1").key(1)


def test_a_copy_is_for_another_node(tmp_path: Path) -> None:
    path, copy = tmp_path / "keys", tmp_path / "copy"
    file = Keys(path, "n1")
    file.extend()
    file.erase([3], 1)
    copy_keys(path, copy, "n2")  # while a broker uses it
    again = Keys(copy, "n2")
    assert [again.key(number) for number in range(1, again.end)] == [
        file.key(number) for number in range(1, file.end)
    ]
    assert again.erasure(3) == 1
    again.close()
    file.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyFileError, match="is the file of node n1: name another one; if this"):
        Keys(path, "n2")
    with pytest.raises(KeyFileError, match="copy: cannot be written: File exists"):
        copy_keys(path, copy, "n3")
    other = tmp_path / "other"
    other.write_text("something")
    with pytest.raises(KeyFileError, match="other: is not a file with keys"):
        copy_keys(other, tmp_path / "new", "n2")


def test_nothing_stays_open_behind_files_and_readers(tmp_path: Path) -> None:
    """A page makes a reader for each log that it opens."""

    def opened() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    Keys(tmp_path / "keys", "n1").close()
    gc.collect()
    before = opened()
    for _ in range(3):
        file = Keys(tmp_path / "keys", "n1")
        file.extend()
        assert KeyReader(tmp_path / "keys", "n1").key(1) is not None
        file.close()
        file.close()
    del file
    gc.collect()
    assert opened() == before
