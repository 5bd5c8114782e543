"""Encrypted stores, backups and indexes: nothing is readable, and no other key is accepted."""

import asyncio
import hashlib
import io
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from storedlogs import COUNT, block, killed_at, made, opened_for_reading, stored, write

from eventstore.datadir import DataDir
from eventstore.encryption import NotOpened, StoreKey
from eventstore.errors import CorruptStore, DataDirError, StoreKeyError
from eventstore.format.records import link_of
from eventstore.reading import damaged_log
from eventstore.reading.backup_files import MANIFEST, BadBackup
from eventstore.reading.damaged_log import SalvageResult, salvage
from eventstore.reading.log_backup import BackupResult, NoContinuation, back_up, restore
from eventstore.reading.log_location import open_directory
from eventstore.reading.log_source import open_log
from eventstore.reading.progress import silent
from eventstore.reading.segment import BadIndex, Segment, SegmentHead, write_segment
from eventstore.server.client_server import ClientServer
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.server.store_encryption import check_blocks, read_block
from projections.past.salvage_needs import SalvageNeeds

KEY = StoreKey(b"k" * 32, Path("key"))
OTHER = StoreKey(b"o" * 32, Path("other"))
BEGIN = made()[0][:6]
"""The first bytes of a record."""
LINKS = [link_of(one) for one in made()]


def contents(folder: Path) -> dict[Path, str]:
    """A digest of each file of a store."""
    files = [file for file in sorted((folder / "jetstream").rglob("*")) if file.is_file()]
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def contain(folder: Path, needle: bytes) -> list[str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [file.name for file in files if needle in file.read_bytes()]


def change(file: Path, at: int = -5) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def read(folder: Path, key: StoreKey | None) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            ignored: Callable[[str], None] = lambda _line: None  # noqa: E731 - typed
            await open_directory(stack, folder, None, key=key, note=ignored, server_log=ignored)

    asyncio.run(run())


def serve(folder: Path, key: StoreKey | None) -> None:
    """Start and stop the server as a broker does."""

    async def run() -> None:
        async with opened_for_reading(folder, key):
            pass

    asyncio.run(run())


def salvaged(
    folder: Path, new: Path, key: StoreKey | None = None, new_key: StoreKey | None = None
) -> SalvageResult:
    ignored: Callable[[str, int, int], None] = lambda *_: None  # noqa: E731 - typed
    return asyncio.run(salvage(folder, new, ignored, SalvageNeeds, "1", key, new_key))


def backed_up(
    folder: Path,
    target: Path | io.BytesIO,
    key: StoreKey | None = KEY,
    store_key: StoreKey | None = KEY,
) -> BackupResult:
    async def run() -> BackupResult:
        async with opened_for_reading(folder, store_key) as client:
            source = await open_log(client, "FOLDMQ_LOG_n1", "here", live=False)
            return await back_up({"n1": source}, target, "backup", "1", 5, silent, key)

    return asyncio.run(run())


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


# -------------------------------------------------------------------------------- sealing


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_sealed_data_are_opened_with_their_key_at_their_place_only() -> None:
    sealer = KEY.sealer(b"index")
    sealed = sealer.seal(b"data", "a")
    assert sealer.open(sealed, "a") == b"data"
    assert sealed != sealer.seal(b"data", "a")
    for other, place, data in (
        (OTHER.sealer(b"index"), "a", sealed),
        (KEY.sealer(b"backup"), "a", sealed),
        (sealer, "b", sealed),
        *((sealer, "a", sealed[:at]) for at in range(len(sealed))),
        *((sealer, "a", flipped(sealed, at)) for at in (0, 12, 15, 31)),
    ):
        with pytest.raises(NotOpened):
            other.open(data, place)


def test_a_mark_tells_keys_apart_and_is_not_part_of_them() -> None:
    assert KEY.mark != OTHER.mark
    assert KEY.mark not in KEY.of_streams


HEAD = SegmentHead("s", 1, 2, "", "", 0, 0)


def test_a_sealed_segment_of_an_index(tmp_path: Path) -> None:
    file, sealer = tmp_path / "1-2.index", KEY.sealer(b"index")
    items = [(f"Talice/{number:04}", [number]) for number in range(3000)]
    write_segment(file, HEAD, items, sealer)
    segment = Segment(file, sealer)
    assert list(segment.items()) == items
    assert segment.get("Talice/2999") == [2999]
    copy = tmp_path / "3-4.index"
    shutil.copy(file, copy)
    for path, key in ((file, None), (file, OTHER.sealer(b"index")), (copy, sealer)):
        with pytest.raises(BadIndex):
            Segment(path, key)
    change(file, 40)
    with pytest.raises(BadIndex):
        Segment(file, sealer).get("Talice/0000")
    write_segment(file, HEAD, items)
    with pytest.raises(BadIndex):  # written before the index was encrypted
        Segment(file, sealer)


# --------------------------------------------------------------------------------- stores


@pytest.mark.system
def test_nothing_of_the_log_is_in_the_files(node: Path, new: Path) -> None:
    write(node, made(), key=KEY)
    write(new, made())  # the control
    for needle in (BEGIN, b"payload 1payload 1", b"foldmq.log.n1"):
        assert not contain(node / "jetstream", needle)
        assert contain(new / "jetstream", needle)
    assert stored(node, KEY) == LINKS
    assert b"payload 1payload 1" in read_block(block(node), KEY)


@pytest.mark.system
async def test_the_key_is_in_no_file_and_no_argument(node: Path) -> None:
    with DataDir(node) as data:
        server = EmbeddedServer(data, key=KEY)
        await server.start()
        try:
            secret = KEY.of_streams.removeprefix("foldmq-").encode()
            assert not contain(node, secret)
            process = Path("/proc", str(server.pid))
            assert secret not in (process / "cmdline").read_bytes()
            assert (process / "environ").stat().st_mode & 0o077 == 0
            assert data.nats_port() == int(server.url.rpartition(":")[2])
            await server.restart()
        finally:
            await server.stop()


@pytest.mark.system
@pytest.mark.parametrize(
    ("written", "given", "line"),
    [
        (KEY, None, "is encrypted: set encryption_key_file to the file with its key"),
        (KEY, OTHER, "encryption_key_file = other: this is not the key of data directory"),
    ],
)
def test_a_missing_or_wrong_key_is_refused_and_changes_nothing(
    node: Path, written: StoreKey, given: StoreKey | None, line: str
) -> None:
    write(node, made(), key=written)
    before = contents(node)
    for use in (read, serve):
        with pytest.raises(StoreKeyError, match=line) as caught:
            use(node, given)
        assert caught.value.exit_code == 78
    assert contents(node) == before
    assert stored(node, written) == LINKS


@pytest.mark.system
def test_a_plain_store_is_read_but_never_rewritten(node: Path) -> None:
    write(node, made())
    before = contents(node)
    with pytest.raises(StoreKeyError, match="is not encrypted: copy it into an encrypted one"):
        serve(node, KEY)
    assert contents(node) == before
    read(node, KEY)
    assert not list(node.rglob("*.key"))


@pytest.mark.system
def test_a_store_that_is_encrypted_in_part_is_refused(node: Path, new: Path) -> None:
    write(node, made(), key=KEY)
    write(new, made(), log="n2")
    streams = "jetstream/jetstream/$G/streams"
    shutil.copytree(new / streams / "FOLDMQ_LOG_n2", node / streams / "FOLDMQ_LOG_n2")
    with pytest.raises(StoreKeyError, match="is encrypted only in part"):
        serve(node, KEY)


@pytest.mark.system
@pytest.mark.parametrize("name", ["meta.key", "1.key"])
@pytest.mark.parametrize("how", ["changed", "removed", "cut"])
def test_a_damaged_key_file_is_found_before_the_server_touches_the_store(
    node: Path, new: Path, name: str, how: str
) -> None:
    write(node, made(), key=KEY)
    (file,) = node.rglob(name)
    if how == "changed":
        change(file)
    elif how == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:20])
    before = contents(node)
    with pytest.raises(CorruptStore, match=f"{name} is missing or cannot be opened") as caught:
        serve(node, KEY)
    assert caught.value.exit_code == 65
    assert contents(node) == before
    if name == "meta.key":  # the messages have keys of their own
        assert salvaged(node, new, KEY).records == COUNT
        assert stored(new, KEY) == LINKS


@pytest.mark.system
@pytest.mark.parametrize("name", ["meta.key", "1.key"])
def test_damaged_projections_are_removed_and_the_log_stays(node: Path, name: str) -> None:
    """They are not synced: a power cut may leave them without their keys."""
    write(node, made(), key=KEY)
    log = node / "jetstream/jetstream/$G/streams/FOLDMQ_LOG_n1"
    state = log.with_name("FOLDMQ_STATE_n1")
    shutil.copytree(log, state)
    (damaged,) = state.rglob(name)
    damaged.write_bytes(b"")
    before = {file: digest for file, digest in contents(node).items() if log in file.parents}
    lines: list[str] = []
    check_blocks(DataDir(node), KEY, lines.append)
    assert not state.exists()
    assert len(lines) == 1
    assert contents(node) == before
    assert stored(node, KEY) == LINKS


@pytest.mark.system
def test_a_changed_byte_is_found_as_in_a_plain_store(node: Path, tmp_path: Path) -> None:
    reports = []
    for key in (None, KEY):
        folder = node.with_name(f"node{key is None}")
        write(folder, made(), key=key)
        at = read_block(block(folder), key).index(b"payload 5payload 5") + 20
        change(block(folder), at)
        found = salvaged(folder, tmp_path / f"new{key is None}", key)
        reports.append([found.records, found.until_ms, [str(hole) for hole in found.holes]])
    assert reports[0] == reports[1]
    assert reports[0][2] == ["record 6 has a wrong checksum"]


@pytest.mark.system
async def test_the_server_of_nats_clients_is_encrypted_too(node: Path) -> None:
    with DataDir(node) as data:
        data.write_private(node / "node", "n1\n")
        server = ClientServer(data, "127.0.0.1", 0, key=KEY, max_payload=1 << 20, store=1 << 20)
        await server.start()
        text = (node / "nats-clients" / "nats.conf").read_text()
        await server.stop()
        assert '"cipher": "aes"' in text
        assert '"encryption_key": $FOLDMQ_STORE_KEY' in text


# -------------------------------------------------------------------------- copies of them


@pytest.mark.system
def test_a_salvage_encrypts_a_plain_log_and_changes_keys(node: Path, new: Path) -> None:
    write(node, made(), noted=COUNT)
    before = contents(node)
    assert salvaged(node, new, KEY).records == COUNT
    assert contents(node) == before
    assert stored(new, KEY) == LINKS
    again = new.with_name("again")
    salvaged(new, again, KEY, OTHER)
    assert stored(again, OTHER) == LINKS
    with pytest.raises(StoreKeyError):
        salvaged(again, new.with_name("third"), KEY)
    assert not new.with_name("third").exists()


@pytest.mark.system
def test_a_compressed_store_is_not_written_in_plain(
    node: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(node, made(), key=KEY)
    monkeypatch.setattr(damaged_log, "is_compressed", lambda *_: True)
    with pytest.raises(DataDirError, match="is compressed by its NATS server"):
        salvaged(node, new, KEY)
    assert not new.exists()


STEPS = [
    ("eventstore.datadir", "DataDir.write_private", 1),
    ("eventstore.reading.fresh_log", "begin_log", 1),
    ("eventstore.reading.fresh_log", "FreshLog.append", 7),
    ("eventstore.reading.fresh_log", "FreshLog.check_end", 1),
    ("eventstore.reading.fresh_log", "_sync", 1),
    ("eventstore.log.watermark", "Watermark.write", 1),
    ("eventstore.reading.damaged_log", "finish_directory", 1),
    ("eventstore.datadir", "DataDir.write_private", 4),
]


@pytest.mark.system
@pytest.mark.parametrize(("place", "name", "calls"), STEPS)
def test_a_killed_copy_leaves_the_old_store_and_can_be_repeated(
    node: Path, new: Path, tmp_path: Path, place: str, name: str, calls: int
) -> None:
    write(node, made(), noted=COUNT)
    before = contents(node)
    file = tmp_path / "key"
    file.write_bytes(b"k" * 32)
    words = ["--data-dir", str(node), "--to", str(new), "--encryption-key-file", str(file)]
    if (place, name) == ("eventstore.reading.fresh_log", "begin_log"):
        place = "eventstore.reading.damaged_log"  # where it is called
    killed_at(place, name, calls, "salvage", *words)
    assert contents(node) == before
    assert not (new / "node").exists()
    salvaged(node, new, KEY)
    assert stored(new, KEY) == LINKS
    assert contents(node) == before


@pytest.mark.system
def test_an_encrypted_backup(node: Path, new: Path, tmp_path: Path) -> None:
    write(node, made(), key=KEY)
    place = tmp_path / "backup"
    assert backed_up(node, place).manifest.key == KEY.mark
    assert not contain(place, BEGIN)
    for key, line in (
        (None, "is encrypted: give the file with its key"),
        (OTHER, "encryption_key_file = other: this is not the key of backup"),
    ):
        with pytest.raises(StoreKeyError, match=line):
            asyncio.run(restore(place, new, silent, key=key))
        assert not new.exists()
    assert asyncio.run(restore(place, new, silent, key=KEY)).records == COUNT
    assert stored(new, KEY) == LINKS
    assert backed_up(node, place).added == 0
    other = new.with_name("other")
    asyncio.run(restore(place, other, silent, key=KEY, new_key=OTHER))
    assert stored(other, OTHER) == LINKS
    (segment,) = place.glob("*.records")
    change(segment)
    with pytest.raises(BadBackup, match=f"{segment.name} is damaged"):
        asyncio.run(restore(place, new.with_name("third"), silent, key=KEY))


class _Archive(io.BytesIO):
    def close(self) -> None:
        """Keep the bytes."""


@pytest.mark.system
def test_an_encrypted_archive_in_a_stream(node: Path, new: Path) -> None:
    write(node, made())
    archive = _Archive()
    backed_up(node, archive, store_key=None)
    assert BEGIN not in archive.getvalue()
    assert MANIFEST.encode() in archive.getvalue()
    archive.seek(0)
    asyncio.run(restore(archive, new, silent, key=KEY))
    assert stored(new, KEY) == LINKS


@pytest.mark.system
@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        (None, KEY, "is not encrypted"),
        (KEY, None, "is encrypted"),
        (KEY, OTHER, "is encrypted with another key"),
    ],
)
def test_a_backup_has_one_key(
    node: Path, tmp_path: Path, first: StoreKey | None, second: StoreKey | None, how: str
) -> None:
    write(node, made())
    place = tmp_path / "backup"
    backed_up(node, place, first, None)
    before = (place / MANIFEST).read_bytes()
    with pytest.raises(NoContinuation, match=f"has a backup that {how}:"):
        backed_up(node, place, second, None)
    assert (place / MANIFEST).read_bytes() == before


@pytest.mark.system
def test_a_restore_encrypts_a_plain_backup(node: Path, new: Path, tmp_path: Path) -> None:
    write(node, made())
    place = tmp_path / "backup"
    backed_up(node, place, None, None)
    asyncio.run(restore(place, new, silent, key=KEY))
    assert not contain(new, BEGIN)
    assert stored(new, KEY) == LINKS
