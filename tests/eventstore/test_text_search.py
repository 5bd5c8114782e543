"""A text is found in every form and every kind of file; what cannot be searched is named."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
import zlib
from pathlib import Path
from urllib.parse import quote

import pytest

from eventstore.encryption import StoreKey
from eventstore.errors import UsageError
from eventstore.format.events import MessagePublished
from eventstore.format.records import GENESIS, encode_record, header_of
from eventstore.reading import text_search
from eventstore.reading.backup_files import BackupDirectory
from eventstore.reading.segment import SegmentHead, write_segment
from eventstore.reading.text_search import TextSearch, forms_of

TEXT = "patients/Müller/heart?1"
KEY = StoreKey(b"k" * 32, Path("key"))
OTHER = StoreKey(b"o" * 32, Path("other"))


def searched(place: Path, text: str = TEXT, key: StoreKey | None = None) -> TextSearch:
    search = TextSearch(text, key)
    search.place(place)
    return search


def places(search: TextSearch) -> list[str]:
    return [Path(hit.place.partition(": ")[0]).name for hit in search.hits]


DATA = TEXT.encode()
FORMS = {
    "utf8": DATA,
    "utf16le": TEXT.encode("utf-16-le"),
    "utf16be": TEXT.encode("utf-16-be"),
    "latin": TEXT.encode("latin-1"),
    "hex": DATA.hex().encode(),
    "hexcapital": DATA.hex().upper().encode(),
    "base64": base64.b64encode(DATA),
    "base64url": base64.urlsafe_b64encode(b"\xff" + DATA + b"\xff"),
    "base64third": base64.b64encode(b"12" + DATA + b"345"),
    "json": json.dumps(TEXT)[1:-1].encode(),
    "jsoncapital": json.dumps(TEXT)[1:-1].replace("\\u00fc", "\\u00FC").encode(),
    "jsonslash": json.dumps(TEXT)[1:-1].replace("/", "\\/").encode(),
    "percent": quote(TEXT, safe="").encode(),
    "percentsmall": quote(TEXT, safe="").lower().replace("patients%2fm", "patients%2fM").encode(),
    "path": quote(TEXT).encode(),
    "subject": TEXT.replace("/", ".").encode(),
    "decomposed": "patients/Mu\u0308ller/heart?1".encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_found(tmp_path: Path, form: str) -> None:
    (tmp_path / "other").write_bytes(os.urandom(5000))
    (tmp_path / form).write_bytes(b"before" + FORMS[form] + b"behind")
    search = searched(tmp_path)
    assert places(search) == [form]
    assert sum(search.hits[0].forms.values()) == 1
    assert (search.files, search.skipped) == (2, [])
    (tmp_path / form).write_bytes(b"before" + FORMS[form][1:-1] + b"behind")
    if not form.startswith("base64"):  # of these only what neighbours do not decide on is searched
        assert places(searched(tmp_path)) == []


@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize("length", [4, 5, 6, 7])
def test_base64_is_found_at_each_alignment(tmp_path: Path, shift: int, length: int) -> None:
    text = "q~Zw9+k"[:length]
    for behind in range(3):
        coded = base64.b64encode(b"\x8e" * shift + text.encode() + b"\x93" * behind)
        (tmp_path / "file").write_bytes(coded)
        assert [*searched(tmp_path, text).hits[0].forms] == ["base64"]


def record(topic: str) -> bytes:
    topics = [topic, *(f"pumps/{number}" for number in range(40))]
    event = MessagePublished("c", 1, False, topics, [*range(41)], [[1, 41, 1]], 0, 0, 41)
    return encode_record(previous=GENESIS, node="n", time_ms=1, events=[event], payloads=[])


def packed(kind: str, data: bytes) -> bytes:
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner", data)
        return made.getvalue()
    if kind.startswith("tar"):
        with tarfile.open(fileobj=made, mode="w:gz" if kind == "targz" else "w") as tar:
            info = tarfile.TarInfo("inner.gz")
            inner = gzip.compress(data)
            info.size = len(inner)
            tar.addfile(info, io.BytesIO(inner))
        return made.getvalue()
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zlib": zlib.compress}
    return b"before" * (kind == "zlib") + pack[kind](data)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zlib", "tar", "targz"])
def test_what_is_compressed_is_searched(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).write_bytes(packed(kind, b"x" * 999 + DATA + b"y" * 999))
    search = searched(tmp_path)
    assert places(search) == [kind]
    assert search.skipped == []


def test_the_json_of_records_is_searched(tmp_path: Path) -> None:
    data = record(TEXT)
    assert DATA not in data
    assert b"patients/" in header_of(data)
    for name, content in (("block", data), ("blockgz", gzip.compress(data))):
        (tmp_path / name).write_bytes(b"\0" * 30 + content if name == "block" else content)
    search = searched(tmp_path)
    assert places(search) == ["block", "blockgz"]
    assert [*search.hits[0].forms] == ["UTF-8 in a record"]
    (tmp_path / "block").write_bytes(data[: len(data) // 2] + b"FMQ\x02" + b"\xff" * 80 + b"FMQ")
    (tmp_path / "blockgz").unlink()
    assert searched(tmp_path).hits == []


@pytest.mark.parametrize("at", range(-25, 5))
def test_a_text_at_the_end_of_a_part_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(text_search, "_STEP", 1000)
    monkeypatch.setattr(text_search, "_WINDOW", 1200)
    begin = 2000 + at
    (tmp_path / "file").write_bytes(b"x" * begin + DATA + b"y" * 1500)
    search = searched(tmp_path)
    assert [dict(hit.forms) for hit in search.hits] == [{"UTF-8": 1}]
    assert search.bytes == begin + len(DATA) + 1500


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("zip", packed("zip", DATA), "zip archive"),
        ("zst", b"\x28\xb5\x2f\xfd" + bytes(50), "compressed with zstd"),
        ("age", b"age-encryption.org/v1\n", "encrypted with age"),
        ("gz", gzip.compress(DATA, mtime=0)[:-9], "compressed, and damaged"),
        ("parquet", b"PAR1" + bytes(50) + b"PAR1", "Parquet file: install"),
    ],
)
def test_what_cannot_be_searched_is_named(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(data)
    search = searched(tmp_path)
    assert search.files == 0
    ((place, text),) = search.skipped
    assert place == str(tmp_path / name)
    assert why in text


def test_links_and_files_without_permission(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(DATA)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "linked").symlink_to(elsewhere)
    (folder / "direct").symlink_to(elsewhere / "file")
    (folder / "dangling").symlink_to(elsewhere / "none")
    os.mkfifo(folder / "fifo")
    search = searched(folder)
    assert places(search) == ["direct"]
    assert [Path(place).name for place, _ in search.skipped] == ["linked"]


def test_what_only_its_server_can_read_is_named(tmp_path: Path) -> None:
    for stream in ("FOLDMQ_LOG_n1", "ORDERS"):
        folder = tmp_path / "streams" / stream / "msgs"
        folder.mkdir(parents=True)
        for name in ("meta.key", "meta.inf", "msgs/index.db"):
            (folder.parent / name).write_bytes(b"sealed")
    search = searched(tmp_path)
    assert sorted(Path(place).name for place, _ in search.skipped) == ["index.db", "meta.inf"]
    assert all("ORDERS" in place for place, _ in search.skipped)
    assert all("only its NATS server can read it" in why for _, why in search.skipped)


def test_names_of_files_are_searched(tmp_path: Path) -> None:
    (tmp_path / "alice-7f3a").mkdir()
    (tmp_path / "alice-7f3a" / "log-of-alice-7f3a").write_bytes(b"nothing")
    assert places(searched(tmp_path, "alice-7f3a")) == ["alice-7f3a", "log-of-alice-7f3a"]


def index(folder: Path) -> None:
    head = SegmentHead("S", 1, 2, "", "", 0, 0)
    write_segment(folder / "1-2.index", head, [(f"T{TEXT}", [1, 2])], KEY.sealer(b"index"))


def backup(folder: Path) -> None:
    BackupDirectory(folder, KEY).add("n.1-2.records", record(TEXT))


@pytest.mark.parametrize("write", [index, backup])
def test_with_its_key_what_is_encrypted_is_searched(tmp_path: Path, write: object) -> None:
    assert callable(write)
    write(tmp_path)
    assert len(searched(tmp_path, key=KEY).hits) == 1
    for key in (None, OTHER):
        search = searched(tmp_path, key=key)
        assert search.hits == []
        ((_, why),) = search.skipped
        assert "encrypt" in why or "damaged" in why


def test_an_encrypted_backup_in_a_tar_archive(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    backup(folder)
    with tarfile.open(tmp_path / "backup.tar", "w") as tar:
        tar.add(folder / "n.1-2.records", "n.1-2.records")
    assert len(searched(tmp_path / "backup.tar", key=KEY).hits) == 1
    assert len(searched(tmp_path / "backup.tar").skipped) == 1


def test_a_text_that_random_bytes_contain_is_refused() -> None:
    for text in ("", "abc", "ü"):
        with pytest.raises(UsageError, match="at least 4 bytes"):
            forms_of(text)
    assert all(len(form) >= 4 for form in forms_of("abcd"))
