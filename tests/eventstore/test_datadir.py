import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from eventstore.datadir import DataDir, take_lock
from eventstore.errors import DataDirBusy, DataDirError, DiskFull


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_making_the_object_touches_nothing(tmp_path: Path) -> None:
    DataDir(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_lock_makes_a_private_directory_and_writes_the_process_id(tmp_path: Path) -> None:
    with DataDir(tmp_path / "a" / "data") as data:
        assert mode(data.path) == 0o700
        assert (data.path / "foldmq.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.system
def test_a_second_broker_gets_the_process_id_of_the_first(tmp_path: Path) -> None:
    code = (
        "import sys; from eventstore.datadir import DataDir; "
        f"DataDir({str(tmp_path)!r}).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        with pytest.raises(DataDirBusy, match=f"process {first.pid}") as caught:
            DataDir(tmp_path).lock()
        assert caught.value.pid == first.pid
        assert caught.value.exit_code == 75
        first.stdin.close()
    with DataDir(tmp_path):
        pass


@pytest.mark.system
def test_lock_of_a_killed_broker_is_free(tmp_path: Path) -> None:
    code = (
        "import os, signal; from eventstore.datadir import DataDir; "
        f"DataDir({str(tmp_path)!r}).lock(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with DataDir(tmp_path):
        pass


def test_lock_can_be_taken_again_after_unlock(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.lock()
    data.lock()
    data.unlock()
    data.unlock()
    with DataDir(tmp_path), pytest.raises(DataDirBusy):
        data.lock()


@pytest.mark.parametrize("below", [False, True])
def test_file_in_the_place_of_the_directory(tmp_path: Path, below: bool) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataDirError, match=r"file: choose another --data-dir") as caught:
        DataDir(file / "data" if below else file).lock()
    assert caught.value.exit_code == 73
    assert str(file) in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_directory_that_cannot_be_made() -> None:
    with pytest.raises(DataDirError, match="data directory /proc/foldmq: "):
        DataDir("/proc/foldmq").lock()


def test_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("eventstore.datadir.take_lock", refuse)
    with pytest.raises(DataDirError, match="is not writable"):
        DataDir(tmp_path).lock()


def test_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=str(tmp_path)) as caught:
        data.credentials()
    assert caught.value.exit_code == 74
    assert not data.nats_credentials.exists()


def test_credentials_are_random_private_and_stable(tmp_path: Path) -> None:
    one, two = DataDir(tmp_path / "one"), DataDir(tmp_path / "two")
    one.lock()
    two.lock()
    made = one.credentials()
    assert made == DataDir(one.path).credentials()
    assert made.password != two.credentials().password
    assert len(made.password) >= 32
    assert mode(one.nats_credentials) == 0o600
    assert made.password not in repr(made)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"user": "x"}'])
def test_damaged_credentials_name_the_remedy(tmp_path: Path, content: str) -> None:
    data = DataDir(tmp_path)
    data.nats_credentials.write_text(content)
    with pytest.raises(DataDirError, match=r"'nats.credentials' is damaged: remove it"):
        data.credentials()


def test_node_is_made_once(tmp_path: Path) -> None:
    node = DataDir(tmp_path).node()
    assert len(node) == 8
    assert node == DataDir(tmp_path).node()


@pytest.mark.parametrize("content", [b"", b"two words", b"a.b", b"x" * 33, b"\xff\xfe"])
def test_damaged_node_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node").write_bytes(content)
    with pytest.raises(DataDirError, match="file 'node'"):
        DataDir(tmp_path).node()


def test_missing_node_beside_a_log_is_refused_with_the_id(tmp_path: Path) -> None:
    (tmp_path / "jetstream/jetstream/$G/streams/FOLDMQ_LOG_abc").mkdir(parents=True)
    with pytest.raises(DataDirError, match="write 'abc' into it"):
        DataDir(tmp_path).node()


def test_tools_read_without_the_lock(tmp_path: Path) -> None:
    with DataDir(tmp_path) as data:
        node, credentials = data.node(), data.credentials()
        tool = DataDir(tmp_path)
        assert (tool.node(), tool.credentials()) == (node, credentials)


@pytest.mark.system
def test_lock_lasts_as_long_as_an_inherited_descriptor(tmp_path: Path) -> None:
    held = take_lock(tmp_path / "lock")
    assert held is not None
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=(held,),
    ) as child:
        os.close(held)
        assert take_lock(tmp_path / "lock") is None
        child.communicate()
    again = take_lock(tmp_path / "lock")
    assert again is not None
    os.close(again)
