"""An archive in an S3 bucket: whatever happens to its writers, each record is in it once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pytest
from archives import DAY_MS, NODE, all_of, archived, built, in_ledger, publish, records
from harness.broker import environment
from harness.logs import BEGIN_MS, LogBuilder
from harness.objectstore import BUCKET, KEY, SECRET, ObjectStoreServer, object_store

from eventstore.errors import CorruptLog
from eventstore.format.records import decode_record
from spark.jobs.archive_plan import archive_place
from spark.jobs.archive_upload import upload_records
from spark.runtime.errors import NotWritable
from spark.runtime.marked_errors import BadOption
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import (
    MERGED,
    ArchiveDamaged,
    ArchiveFile,
    Segment,
    needed_objects,
    object_numbers,
)
from spark.tables.archive_log import archived_logs, ledger_of
from spark.tables.archive_store import MARKERS, StoreWriter, open_store_writer
from spark.tables.archive_writer import ArchiveBusy
from spark.tables.directories import Directory, NoDirectory, StoreUnavailable
from spark.tables.object_store import NoObjectStore, ObjectStore
from spark.tables.parquet_files import RecordRun, check_file

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.system

__all__ = ["object_store"]  # a fixture


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """A path in the bucket that no other test has."""
    return str(request.node.name).translate(str.maketrans("[]", "--"))


def rows(stored: Iterable[tuple[int, bytes]]) -> pa.RecordBatch:
    """Return records as Spark passes them to the function that uploads them."""
    found = []
    for sequence, data in stored:
        record = decode_record(sequence, data)
        day = datetime.fromtimestamp(record.time_ms / 1000, UTC).date().isoformat()
        found.append(
            {
                "date": day,
                "seq": sequence,
                "time_ms": record.time_ms,
                "part": record.part,
                "last": record.last,
                "data": data,
            }
        )
    found.sort(key=lambda row: (row["date"], row["seq"]))
    return pa.RecordBatch.from_pylist(found)


def upload(
    writer: StoreWriter, stored: Iterable[tuple[int, bytes]], attempt: int = 1
) -> list[RecordRun]:
    writer.begin()
    names = [*upload_records(writer.folder, writer.run, attempt, [rows(stored)])]
    return [run for name in names for run in check_file(writer.folder, name)]


def append(uri: str, log: LogBuilder, last: int, per_batch: int = 10) -> None:
    """Archive the records of a log that are new, up to a record."""
    with open_store_writer(Directory(uri), log.stream, NODE) as writer:
        while writer.ledger.last < last:
            first = writer.ledger.last + 1
            writer.add(upload(writer, records(log, first, min(last, first + per_batch - 1))))


def files_of(object_store: ObjectStoreServer, path: str) -> set[str]:
    """The files of records in the bucket."""
    return {name for name in object_store.names(f"{path}/{NODE}") if name.endswith(".parquet")}


# --------------------------------------------------------------------------------- contents


def test_each_run_continues_the_previous_one(object_store: ObjectStoreServer, path: str) -> None:
    log, uri = built(30), object_store.uri(path)
    append(uri, log, 12)
    assert all_of(uri) == records(log, 1, 12)
    append(uri, log, 30)
    assert all_of(uri) == records(log, 1, 30)
    objects = object_store.objects(f"{path}/{NODE}")
    assert files_of(object_store, path) == in_ledger(uri)
    numbers = [f"_foldmq/ledger/{number:012}.jsonl" for number in range(5)]
    assert sorted(objects.keys() - in_ledger(uri)) == numbers
    append(uri, log, 30)
    assert object_store.objects(f"{path}/{NODE}") == objects


def test_files_are_of_one_day(object_store: ObjectStoreServer, path: str) -> None:
    """If the clock is set back over midnight, the files of the days overlap."""
    log, midnight = LogBuilder(), (BEGIN_MS // DAY_MS + 1) * DAY_MS
    for time_ms in (midnight - 1, midnight, midnight - 2, midnight + 1):
        publish(log, 4, time_ms=time_ms)
    uri = object_store.uri(path)
    append(uri, log, 16, per_batch=16)
    assert all_of(uri) == records(log, 1, 16)
    dates = {name.partition("/")[0] for name in files_of(object_store, path)}
    assert dates == {"date=2023-11-14", "date=2023-11-15"}


def test_only_continuing_records_are_added(object_store: ObjectStoreServer, path: str) -> None:
    log, other, uri = built(30), LogBuilder(), object_store.uri(path)
    publish(other, 30, 33)
    append(uri, log, 10)
    for wrong, why in (
        (records(log, 12, 20), "record 11 is missing"),
        (records(other, 11, 20), "record 11 does not continue record 10"),
    ):
        with (
            pytest.raises(CorruptLog, match=why),
            open_store_writer(Directory(uri), log.stream, NODE) as writer,
        ):
            writer.add(upload(writer, wrong))
        assert files_of(object_store, path) == in_ledger(uri), "its files are removed"
    append(uri, log, 30)
    assert all_of(uri) == records(log, 1, 30)


def test_a_run_without_new_records_writes_nothing(
    object_store: ObjectStoreServer, path: str
) -> None:
    with open_store_writer(Directory(object_store.uri(path)), "FOLDMQ_LOG_n1", NODE) as writer:
        assert (writer.outcome.through, writer.outcome.where) == (0, f"s3://{BUCKET}/{path}/{NODE}")
    assert not object_store.names(path)


def test_names_are_not_decoded(object_store: ObjectStoreServer, path: str) -> None:
    log, node = built(5), "node=of%20x"
    uri = object_store.uri(path)
    with open_store_writer(Directory(uri), log.stream, node) as writer:
        writer.add(upload(writer, records(log, 1, 5)))
    assert {name.partition("/")[0] for name in object_store.names(path)} == {node}
    assert all_of(uri) == records(log, 1, 5)


# ------------------------------------------------------------------- the ledger in many objects


def test_the_needed_objects_have_all_lines() -> None:
    assert needed_objects([]) == []
    assert needed_objects(range(3)) == [0, 1, 2]
    assert needed_objects(range(MERGED)) == [*range(MERGED)]
    assert needed_objects(range(MERGED + 1)) == [0, MERGED]
    assert needed_objects(range(2 * MERGED + 3)) == [0, 100, 200, 201, 202]
    names = ["_foldmq/ledger/000000000002.jsonl", "_foldmq/ledger/x", "_foldmq/lock"]
    assert object_numbers(names) == [2]


def test_more_objects_than_a_listing_returns_at_once(
    object_store: ObjectStoreServer, path: str
) -> None:
    """1,000. Each writer reads the ledger anew; some continue it at or beside a merged object."""
    uri, folder = object_store.uri(path), Directory(object_store.uri(path)).within(NODE)
    count = 1030
    for last in (50, 99, 100, 101, 199, 200, 1005, count):
        with open_store_writer(Directory(uri), "FOLDMQ_LOG_n1", NODE) as writer:
            writer.begin()
            for sequence in range(writer.ledger.last + 1, last + 1):
                file = ArchiveFile(f"date=x/{sequence}", 1)
                links = f"{sequence - 1:064x}", f"{sequence:064x}"
                line = Segment(sequence, sequence, *links, 1, 1, 1, (file,)).line()
                writer._create(line)
        ledger = ledger_of(folder)
        assert ledger is not None
        assert (ledger.first, ledger.last, len(ledger.segments)) == (1, last, last)
    objects = object_store.objects(f"{path}/{NODE}/_foldmq/ledger")
    assert len(objects) == count + 1
    lines = [data.count(b"\n") for data in objects.values()]
    assert set(lines) == {1, MERGED}
    assert sum(lines) == count + 1 + count // MERGED * (MERGED - 1)


@pytest.mark.parametrize("number", range(3))
def test_a_missing_object_is_damage(
    object_store: ObjectStoreServer, path: str, number: int
) -> None:
    """Also the first one with records: a log may have been cut before it was archived."""
    log, uri = built(30), object_store.uri(path)
    append(uri, log, 30)
    key = f"{path}/{NODE}/_foldmq/ledger/{number:012}.jsonl"
    object_store.client.delete_object(Bucket=BUCKET, Key=key)
    for use in (all_of, lambda uri: append(uri, log, 30)):
        with pytest.raises(ArchiveDamaged, match=f"_foldmq/ledger/{number:012}.jsonl of the archi"):
            use(uri)


@pytest.mark.parametrize("rest", [0, 0.5])
def test_an_incomplete_object_is_damage(
    object_store: ObjectStoreServer, path: str, rest: float
) -> None:
    """Also the last one: unlike a line of a file it was written whole or not at all."""
    log, uri = built(30), object_store.uri(path)
    append(uri, log, 30)
    key = f"{path}/{NODE}/_foldmq/ledger/000000000003.jsonl"
    data = object_store.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    object_store.client.put_object(Bucket=BUCKET, Key=key, Body=data[: int(len(data) * rest)])
    for use in (all_of, lambda uri: append(uri, log, 30)):
        with pytest.raises(ArchiveDamaged, match="of the archive is incomplete"):
            use(uri)


def test_only_objects_with_needed_lines_must_exist(
    object_store: ObjectStoreServer, path: str
) -> None:
    uri, folder = object_store.uri(path), Directory(object_store.uri(path)).within(NODE)
    with open_store_writer(Directory(uri), "FOLDMQ_LOG_n1", NODE) as writer:
        writer.begin()
        for sequence in range(1, MERGED + 3):
            links = f"{sequence - 1:064x}", f"{sequence:064x}"
            file = ArchiveFile(f"date=x/{sequence}", 1)
            writer._create(Segment(sequence, sequence, *links, 1, 1, 1, (file,)).line())
    for number in (1, MERGED - 1, MERGED, MERGED + 1):
        key = f"{path}/{NODE}/_foldmq/ledger/{number:012}.jsonl"
        data = object_store.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        object_store.client.delete_object(Bucket=BUCKET, Key=key)
        if number < MERGED:
            ledger = ledger_of(folder)
            assert ledger is not None
            assert (ledger.first, ledger.last) == (1, MERGED + 2)
        else:
            with pytest.raises(ArchiveDamaged, match=f"{number:012}.jsonl of the archive is miss"):
                ledger_of(folder)
        object_store.client.put_object(Bucket=BUCKET, Key=key, Body=data)


# ------------------------------------------------------------------------- from and to a directory


def test_a_copy_in_a_directory_is_read_but_not_continued(
    object_store: ObjectStoreServer, path: str, tmp_path: Path
) -> None:
    log, uri = built(30), object_store.uri(path)
    append(uri, log, 30)
    for name, data in object_store.objects(path).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert all_of(str(tmp_path)) == records(log, 1, 30)
    with (
        pytest.raises(NotWritable, match="is a copy from an object store, which can be read"),
        open_writer(tmp_path, log.stream, NODE),
    ):
        pass


def test_an_archive_that_was_copied_to_a_bucket_is_continued(
    object_store: ObjectStoreServer, path: str, tmp_path: Path
) -> None:
    log, uri = built(40), object_store.uri(path)
    archived(tmp_path, log, 20)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            key = f"{path}/{file.relative_to(tmp_path)}"
            object_store.client.put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())
    ledger = f"{path}/{NODE}/_foldmq/ledger.jsonl"
    whole = (tmp_path / NODE / "_foldmq/ledger.jsonl").read_bytes()
    object_store.client.put_object(Bucket=BUCKET, Key=ledger, Body=whole + b'{"first":')
    append(uri, log, 30)
    assert all_of(uri) == records(log, 1, 30)
    append(uri, log, 40)
    assert all_of(uri) == records(log, 1, 40)


# ----------------------------------------------------------------------------------- two at once


def test_of_two_runs_one_adds(object_store: ObjectStoreServer, path: str) -> None:
    log, uri = built(40), object_store.uri(path)
    append(uri, log, 10)
    with open_store_writer(Directory(uri), log.stream, NODE) as first:
        runs = upload(first, records(log, 11, 30))

        def lose() -> None:
            with open_store_writer(Directory(uri), log.stream, NODE) as second:
                others = upload(second, records(log, 11, 25))
                first.add(runs)
                second.add(others)

        with pytest.raises(ArchiveBusy, match="another run continued the archive") as busy:
            lose()
        assert busy.value.exit_code == 75
        first.add(upload(first, records(log, 31, 35)))
    assert all_of(uri) == records(log, 1, 35)
    append(uri, log, 40)
    assert all_of(uri) == records(log, 1, 40)
    assert files_of(object_store, path) == in_ledger(uri)


def test_what_a_slower_run_uploaded_may_be_removed(
    object_store: ObjectStoreServer, path: str
) -> None:
    """Its records are in the archive already: it cannot add them any more."""
    log, uri = built(40), object_store.uri(path)

    def lose() -> None:
        with open_store_writer(Directory(uri), log.stream, NODE) as slow:
            (removed,) = upload(slow, records(log, 1, 10))
            (kept,) = upload(slow, records(log, 21, 30), 2)
            append(uri, log, 20)
            assert files_of(object_store, path) - in_ledger(uri) == {kept.file}
            [*check_file(slow.folder, removed.file)]

    with pytest.raises(ArchiveBusy):  # not that the file is missing
        lose()
    append(uri, log, 40)
    assert all_of(uri) == records(log, 1, 40)
    assert files_of(object_store, path) == in_ledger(uri)


def test_many_runs_at_once(object_store: ObjectStoreServer, path: str) -> None:
    log, uri = built(60), object_store.uri(path)

    def run(_number: int) -> bool:
        try:
            append(uri, log, 60, per_batch=5)
        except ArchiveBusy:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(run, range(8)))
    assert all_of(uri) == records(log, 1, 60)
    assert files_of(object_store, path) == in_ledger(uri)


# ----------------------------------------------------------------------------------- killed


class Killed(BaseException):
    """The process ends here."""


class Fuse:
    """Counts requests that change the bucket; from one such step on nothing does any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.dead = False
        self.answered = False
        """Whether the last request before the end reaches the object_store."""
        for name in ("put", "delete"):
            monkeypatch.setattr(obstore, name, self.step(getattr(obstore, name)))

    def step(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def take(*args: Any, **kwargs: Any) -> Any:
            if self.left is None:
                return request(*args, **kwargs)
            if self.dead:
                raise Killed
            self.left -= 1
            if self.left < 0:
                self.dead = True
                if self.answered:
                    request(*args, **kwargs)
                raise Killed
            return request(*args, **kwargs)

        return take


@pytest.mark.parametrize("answered", [False, True])
def test_killed_at_any_step(
    object_store: ObjectStoreServer, path: str, monkeypatch: pytest.MonkeyPatch, *, answered: bool
) -> None:
    """What the ledger has stays, nothing is there twice, and the next run continues."""
    log, fuse = built(30), Fuse(monkeypatch)
    fuse.answered = answered
    steps = 0
    for before in (0, 10):
        for steps in range(40):
            uri = object_store.uri(f"{path}{before}-{steps}")
            fuse.left = None
            append(uri, log, before)
            fuse.left, fuse.dead = steps, False
            try:
                append(uri, log, 20, per_batch=5)
            except Killed:
                pass
            else:
                break
            fuse.left, fuse.dead = None, False
            ledger = ledger_of(Directory(uri).within(NODE))
            reached = 0 if ledger is None else ledger.last
            assert before <= reached <= 20
            if reached:
                assert all_of(uri) == records(log, 1, reached)
            append(uri, log, 30, per_batch=10)
            assert all_of(uri) == records(log, 1, 30)
            assert files_of(object_store, f"{path}{before}-{steps}") == in_ledger(uri)
        assert 5 < steps < 39


def test_a_lost_answer_is_no_conflict(
    object_store: ObjectStoreServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package repeats a request whose answer is lost; the object is then its own."""
    put = obstore.put

    def twice(store: Any, key: str, data: Any, **kwargs: Any) -> Any:
        if "/_foldmq/" in key:
            put(store, key, data, **kwargs)
        return put(store, key, data, **kwargs)

    monkeypatch.setattr(obstore, "put", twice)
    log, uri = built(20), object_store.uri(path)
    append(uri, log, 20)
    assert all_of(uri) == records(log, 1, 20)


def test_an_answer_that_does_not_come(
    object_store: ObjectStoreServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line may be in the ledger: no file of it is removed."""
    log, uri = built(20), object_store.uri(path)
    append(uri, log, 10)
    with monkeypatch.context() as patched:
        put = obstore.put

        def lost(store: Any, key: str, data: Any, **kwargs: Any) -> Any:
            put(store, key, data, **kwargs)
            if key.endswith("000000000002.jsonl"):
                raise obstore.exceptions.GenericError("time-out")

        patched.setattr(obstore, "put", lost)
        with pytest.raises(StoreUnavailable, match="time-out"):
            append(uri, log, 20)
    assert all_of(uri) == records(log, 1, 20)
    append(uri, log, 20)


def test_marks_of_runs_that_ended_long_ago_are_removed(
    object_store: ObjectStoreServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, uri = built(20), object_store.uri(path)
    with monkeypatch.context() as patched:
        patched.setattr(StoreWriter, "finish", lambda _writer: None)
        with open_store_writer(Directory(uri), log.stream, NODE) as writer:
            upload(writer, records(log, 1, 10))
    append(uri, log, 15)
    assert len(object_store.names(f"{path}/{NODE}/{MARKERS}")) == 1
    assert files_of(object_store, path) == in_ledger(uri)
    monkeypatch.setattr("spark.tables.archive_store._FORGOTTEN_S", -60)
    append(uri, log, 20)
    assert not object_store.names(f"{path}/{NODE}/{MARKERS}")


KILLED = """
import sys
sys.path[:0] = ["tests", "tests/spark"]
import test_archive_store as test
log, uri = test.built(int(sys.argv[2])), sys.argv[1]
with test.open_store_writer(test.Directory(uri), log.stream, test.NODE) as writer:
    while True:
        first = writer.ledger.last + 1
        runs = test.upload(writer, test.records(log, first, first + 9))
        print(writer.ledger.last, flush=True)
        writer.add(runs)
"""


def test_a_process_that_is_killed(object_store: ObjectStoreServer, path: str) -> None:
    """``kill -9``, with credentials and server from the environment, at about any request."""
    log, uri = built(2000), f"s3://{BUCKET}/{path}"
    for lines in (1, 4, 2):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, uri, "2000"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**environment(), **object_store.environment},
        ) as process:
            assert process.stdout is not None
            reported = [int(process.stdout.readline()) for _ in range(lines)]
            process.kill()
        stored = ledger_of(Directory(object_store.uri(path)).within(NODE))
        assert stored is not None
        assert stored.last >= reported[-1]
    assert all_of(object_store.uri(path)) == records(log, 1, stored.last)
    append(object_store.uri(path), log, stored.last + 5)
    assert all_of(object_store.uri(path)) == records(log, 1, stored.last + 5)
    assert files_of(object_store, path) == in_ledger(object_store.uri(path))


# ------------------------------------------------------------------------------------- errors


def test_wrong_credentials(object_store: ObjectStoreServer, path: str) -> None:
    log, uri = built(20), object_store.uri(path)
    append(uri, log, 10)
    with open_store_writer(Directory(uri), log.stream, NODE) as writer:
        runs = upload(writer, records(log, 11, 20))
        object_store.require_credentials(required=True)
        try:
            with pytest.raises(NoDirectory, match="access denied: check AWS_ACCESS_KEY_ID"):
                all_of(uri)
            with pytest.raises(NotWritable, match="access denied: check AWS_ACCESS_KEY_ID") as no:
                ObjectStore.open(writer.folder).put("x", Path(__file__))
            assert no.value.exit_code == 73
            assert SECRET not in str(no.value)
            assert KEY not in str(no.value)
            with pytest.raises(NoDirectory, match="access denied"):
                archive_place(uri)
        finally:
            object_store.require_credentials(required=False)
        writer.add(runs)
    assert all_of(uri) == records(log, 1, 20)


def test_keys_of_a_uri_need_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session token there belongs to other keys; a server there is another one."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    sent: list[dict[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            sent.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        query = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=r"
        store = ObjectStore.open(Directory(f"s3://KEY:a%2Fb@bucket/a?{query}"))
        assert store.try_to_create("x", b"1")
        server.shutdown()
    (headers,) = sent
    assert headers["if-none-match"] == "*"
    assert "Credential=KEY/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


def test_a_missing_bucket(object_store: ObjectStoreServer) -> None:
    uri = object_store.uri("a", "missing")
    for look in (archived_logs, archive_place):
        with pytest.raises(NoDirectory, match="s3://missing/a cannot be read: there is no such b"):
            look(uri)
    with pytest.raises(NotWritable, match="there is no such bucket"):
        ObjectStore.open(Directory(uri)).create("x", b"")


def test_a_server_that_does_not_answer(path: str) -> None:
    gone = ObjectStoreServer()
    gone.start()
    log, uri = built(20), gone.uri(path)
    append(uri, log, 10)
    store = ObjectStore.open(Directory(uri))
    gone.stop()
    for ask in (lambda: archived_logs(uri), lambda: archive_place(uri)):
        with pytest.raises(
            StoreUnavailable, match=r"s3://bucket/.* cannot be read: NETWORK"
        ) as error:
            ask()
        assert error.value.exit_code == 69
        assert "\n" not in str(error.value)
    with pytest.raises(StoreUnavailable, match="cannot be written: ") as error:
        store.create("x", b"")
    assert "\n" not in str(error.value)


def test_a_server_that_fails_while_files_are_read_does_not_look_like_damage(path: str) -> None:
    failing = ObjectStoreServer()
    failing.start()
    log, uri = built(20), failing.uri(path)
    append(uri, log, 20)
    (stored,) = archived_logs(uri)
    assert list(stored.read(1, 5)) == records(log, 1, 5)
    failing.stop()
    with pytest.raises(StoreUnavailable):
        list(stored.read(1, 20))


def test_a_store_without_conditional_writes(
    object_store: ObjectStoreServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def overwrite(*args: Any, mode: str | None = None, **kwargs: Any) -> Any:
        del mode
        return put(*args, **kwargs)

    monkeypatch.setattr(obstore, "put", overwrite)
    with pytest.raises(NotWritable, match="its store ignores If-None-Match") as error:
        append(object_store.uri(path), built(10), 10)
    assert error.value.exit_code == 73
    assert not files_of(object_store, path)
    assert {name.partition("/")[0] for name in object_store.names(f"{path}/{NODE}")} == {MARKERS}


def test_without_the_package(
    object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NoObjectStore, match=r"\(foldmq\[s3\]\): .*pip install .*") as error:
        archive_place(object_store.uri("a"))
    assert error.value.exit_code == 69


def test_the_directory_of_a_node_is_no_archive(object_store: ObjectStoreServer, path: str) -> None:
    append(object_store.uri(path), built(5), 5)
    with pytest.raises(BadOption, match=f"{NODE} is what an archive has of one node"):
        archive_place(object_store.uri(f"{path}/{NODE}"))
