"""The file with the master key: a crash at any byte leaves a key, and no old one stays."""

import os
import stat
from pathlib import Path

import pytest

from eventstore.master_keys import MasterKeyError, MasterKeyFile

OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
def file(tmp_path: Path) -> MasterKeyFile:
    return MasterKeyFile(tmp_path / "master")


def test_a_new_key_replaces_the_old_one_in_place(file: MasterKeyFile) -> None:
    assert file.read() == {}
    file.add(1, OLD)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    place = file.path.stat().st_ino
    file.add(2, NEW)
    assert file.read() == {1: OLD, 2: NEW}
    file.destroy(1)
    assert file.read() == {2: NEW}
    assert OLD.hex().encode() not in file.path.read_bytes()
    file.destroy(1)
    file.add(3, OLD)
    file.destroy(2)
    assert file.read() == {3: OLD}
    assert (file.path.stat().st_ino, file.path.stat().st_size) == (place, 512)


def test_the_same_generation_is_written_again_and_no_third_one(file: MasterKeyFile) -> None:
    file.add(1, OLD)
    file.add(2, OLD)
    file.add(2, NEW)
    assert file.read() == {1: OLD, 2: NEW}
    with pytest.raises(MasterKeyError, match="has two keys, of generations 1 and 2"):
        file.add(3, NEW)


@pytest.mark.parametrize("step", ["add", "destroy"])
def test_a_write_that_ends_anywhere_leaves_the_other_key(
    file: MasterKeyFile, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.add(1, OLD)
    if step == "destroy":
        file.add(2, NEW)
    before = file.path.read_bytes()
    whole = os.pwrite
    for size in range(257):
        file.path.write_bytes(before)
        monkeypatch.setattr(os, "pwrite", lambda to, data, at, n=size: whole(to, data[:n], at))
        if step == "add":
            file.add(2, NEW)
            found = file.read()
            assert found.pop(1) == OLD, size
            assert found in ({}, {2: NEW}), size
        else:
            file.destroy(1)
            assert file.read().get(2) == NEW, size


def test_each_write_is_synced(file: MasterKeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda to: synced.append(Path(f"/proc/self/fd/{to}").readlink().name)
    )
    file.add(1, OLD)
    assert synced == [file.path.name, file.path.parent.name]
    file.add(2, NEW)
    file.destroy(1)
    assert synced[2:] == [file.path.name] * 2


def test_a_file_that_is_no_key_is_left_alone(file: MasterKeyFile) -> None:
    file.path.write_text("secret\n")
    for use in (file.read, lambda: file.add(1, OLD)):
        with pytest.raises(MasterKeyError, match="has no intact key") as caught:
            use()
        assert caught.value.exit_code == 78
    assert file.path.read_text() == "secret\n"
    file.path.unlink()
    file.path.mkdir()
    for use in (file.read, lambda: file.add(1, OLD), lambda: file.destroy(1)):
        with pytest.raises(MasterKeyError, match="cannot be read: Is a directory"):
            use()


def test_a_changed_digit_is_found(file: MasterKeyFile) -> None:
    file.add(1, OLD)
    file.add(2, NEW)
    data = file.path.read_bytes()
    file.path.write_bytes(data.replace(OLD.hex().encode(), b"7" * 64))
    assert file.read() == {2: NEW}
