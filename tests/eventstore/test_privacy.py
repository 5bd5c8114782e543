"""The data directory is private: loose modes are narrowed, foreign files refused."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.datadir import DataDir
from eventstore.errors import DataDirBusy, DataDirError
from eventstore.server.client_server import ClientServer
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system

STRANGER = 54321
FILES = ("node", "nats.conf", "nats.credentials", "nats.stderr", "nats.log", "nats.pid", "log.mark")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path) -> str:
    with pytest.raises(DataDirError) as caught:
        DataDir(path).lock()
    assert caught.value.exit_code == 73
    said = str(caught.value)
    assert said.isprintable()
    assert said.startswith(f"data directory {path}: ")
    return said.removeprefix(f"data directory {path}: ")


@pytest.mark.parametrize("loose", [0o755, 0o777, 0o1777, 0o770, 0o701])
def test_an_accessible_directory_is_closed_with_a_warning(tmp_path: Path, loose: int) -> None:
    tmp_path.chmod(loose)
    with DataDir(tmp_path) as data:
        assert mode(tmp_path) == 0o700
        (line,) = data.narrowed
    assert line == (
        f"data directory {tmp_path} was open to other users (mode {loose:04o}): set to 0700"
    )
    with DataDir(tmp_path) as data:
        assert data.narrowed == ()


@pytest.mark.parametrize("fine", [0o700, 0o750])
def test_a_directory_that_is_closed_is_left_alone(tmp_path: Path, fine: int) -> None:
    tmp_path.chmod(fine)
    with DataDir(tmp_path) as data:
        assert (mode(tmp_path), data.narrowed) == (fine, ())


def test_accessible_files_are_closed_with_a_warning(tmp_path: Path) -> None:
    loose = {"nats.conf": 0o640, "nats.stderr": 0o644, "node": 0o666}
    for name, bits in {**loose, "nats.log": 0o640, "others": 0o666}.items():
        (tmp_path / name).write_text("abc\n")
        (tmp_path / name).chmod(bits)
    with DataDir(tmp_path) as data:
        (line,) = data.narrowed
        assert line == (
            f"data directory {tmp_path}: other users could read or write nats.conf, nats.stderr, "
            "node: mode set to 0600"
        )
        assert data.node() == "abc"
    assert {name: mode(tmp_path / name) for name in loose} == dict.fromkeys(loose, 0o600)
    assert (mode(tmp_path / "nats.log"), mode(tmp_path / "others")) == (0o640, 0o666)


@pytest.mark.parametrize("name", [*FILES, "foldmq.lock", "nats.lock", "web.token"])
@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_in_the_place_of_a_file_is_refused(
    tmp_path: Path, name: str, *, dangling: bool
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(mode=0o700)
    if not dangling:
        elsewhere.write_text("precious")
    (data / name).symlink_to(elsewhere)
    assert refusal(data) == (
        f"file {name!r} is a symbolic link: put the file itself in its place, or remove it"
    )
    assert elsewhere.exists() is not dangling
    assert dangling or elsewhere.read_text() == "precious"


def test_other_objects_in_place_of_a_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nats.conf")
    assert refusal(tmp_path) == "'nats.conf' is not a file: remove it"


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_other_objects_in_place_of_a_directory_are_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "jetstream")
    assert refusal(tmp_path) == "'jetstream' is not a directory: remove it"


def test_links_to_directories_are_the_operators(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "jetstream").symlink_to(store)
    (tmp_path / "link").symlink_to(data)
    with DataDir(tmp_path / "link") as held:
        assert held.narrowed == ()


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, -1)
    assert refusal(tmp_path) == (
        "belongs to user 54321, foldmq runs as root (user 0): run it as that user, change the "
        "owner, or choose another --data-dir"
    )
    assert list(tmp_path.iterdir()) == []


@as_root
def test_a_broker_of_another_user_is_found_where_it_runs(tmp_path: Path) -> None:
    """Commands that read the log use its server, whatever their user."""
    with DataDir(tmp_path):
        os.chown(tmp_path, STRANGER, -1)
        with pytest.raises(DataDirBusy) as caught:
            DataDir(tmp_path).lock()
        assert caught.value.pid == os.getpid()
    assert refusal(tmp_path).startswith("belongs to user 54321")


@as_root
@pytest.mark.parametrize("name", [*FILES, "foldmq.lock", "jetstream", "nats-clients"])
def test_files_of_another_user_are_refused(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    if "." in name or name == "node":
        place.write_text("abc\n")
    else:
        place.mkdir()
    os.chown(place, STRANGER, -1)
    assert refusal(tmp_path).startswith(f"{name!r} belongs to user 54321, foldmq runs as root")


@as_root
@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (
            0o2775,
            (
                "('data directory {0} belongs to root and is open to other users (mode 2775): "
                "a directory below it would be made private',)"
            ),
        ),
        (
            0o2770,
            (
                "('data directory {0} belongs to root and is open to other users (mode 2770): "
                "a directory below it would be made private',)"
            ),
        ),
        (
            0o1777,
            (
                "data directory {0}: belongs to root and all users may write there (mode 1777): "
                "change its mode, or name a directory below it, which is made private"
            ),
        ),
    ],
)
def test_a_volume_of_roots_that_a_group_writes(bits: int, said: str) -> None:
    """As created by Kubernetes (fsGroup): a warning, and refused if writable by all users."""
    code = f"""
import os, sys
from eventstore.datadir import DataDir
os.setgroups([{STRANGER}]); os.setgid({STRANGER}); os.setuid({STRANGER})
data = DataDir(sys.argv[1])
try:
    data.lock()
    print(data.narrowed)
except Exception as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o711)
        volume = Path(above, "volume")
        volume.mkdir()
        os.chown(volume, 0, STRANGER)
        volume.chmod(bits)
        found = subprocess.run(
            [sys.executable, "-c", code, str(volume)], capture_output=True, text=True, check=False
        )
    assert found.stdout == said.format(volume) + "\n", found.stderr


async def test_a_server_makes_no_file_that_others_can_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with DataDir(tmp_path / "data") as data:
            server = EmbeddedServer(data)
            await server.start()
            await server.stop()
    finally:
        os.umask(before)
    loose = [path.name for path in data.path.iterdir() if path.is_file() and mode(path) & 0o027]
    assert loose == []
    assert mode(data.nats_stderr) == 0o600
    with DataDir(data.path) as again:
        assert again.narrowed == ()


async def test_the_directory_of_the_server_for_clients_is_checked_too(tmp_path: Path) -> None:
    lines: list[str] = []
    with DataDir(tmp_path) as data:
        folder = tmp_path / "nats-clients"
        folder.mkdir()
        folder.chmod(0o755)
        server = ClientServer(data, "127.0.0.1", 0, max_payload=1 << 20, store=0, log=lines.append)
        await server.start()
        await server.stop()
        assert lines == [
            f"data directory {folder} was open to other users (mode 0755): set to 0700"
        ]
        (folder / "nats.conf").unlink()
        (folder / "nats.conf").symlink_to("/dev/zero")
        with pytest.raises(DataDirError, match=r"file 'nats.conf' is a symbolic link"):
            await server.start()
