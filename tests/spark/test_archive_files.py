"""An archive is read as the log was, and damage in it is reported."""

import asyncio
import bisect
import contextlib
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from archives import DAY_MS, NODE, all_of, archived, built, publish, records, stage
from harness.logs import BEGIN_MS, LogBuilder
from pyarrow import parquet

from cli.logs.point_resolution import parse_point
from cli.logs.source_flags import SourceFlags
from cli.spark.log_location import Found, find, since, until
from cli.spark.spark_flags import SparkFlags
from eventstore.display import iso
from eventstore.errors import CorruptLog, UsageError
from eventstore.format.records import decode_record
from spark.runtime.marked_errors import BadOption, MarkedError
from spark.tables import parquet_files
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import (
    LEDGER_FILE,
    ArchiveDamaged,
    LaterArchive,
    NoArchive,
    parse_ledger,
)
from spark.tables.archive_log import ArchivedLog, archived_logs
from spark.tables.directories import Directory, NoDirectory, without_secrets
from spark.tables.options import SourceOptions
from spark.tables.planning import RecordTimes
from spark.tables.source import LogReader


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("node=*/date=*/*.parquet"))


# ------------------------------------------------------------------------------------- whole


def test_an_archive_gives_the_records_of_the_log(tmp_path: Path) -> None:
    log = built(57)
    archived(tmp_path, log, 23)
    archived(tmp_path, log)
    (stored,) = archived_logs(str(tmp_path))
    assert (stored.stream, stored.first, stored.last) == (log.stream, 1, 57)
    assert stored.size == sum(map(len, log.records))
    assert stored.borders == (1, 11, 21, 24, 34, 44, 54)
    rows = records(log)
    assert list(stored.read(1, 57)) == rows
    for first, last in itertools.product((1, 2, 10, 23, 24, 40, 57), repeat=2):
        assert list(stored.read(first, last)) == rows[first - 1 : last]
    assert list(stored.read(0, 999)) == rows


def test_it_is_found_by_a_path_a_uri_and_as_one_nodes_part(tmp_path: Path) -> None:
    log = built(5)
    archived(tmp_path, log)
    rows = records(log)
    for place in (
        f"{tmp_path}/",
        f"file://{tmp_path}",
        tmp_path / NODE,
        f"file://{tmp_path}/{NODE}",
    ):
        assert all_of(place) == rows


def test_it_may_be_moved(tmp_path: Path) -> None:
    log = built(5)
    archived(tmp_path / "a", log)
    (tmp_path / "a").rename(tmp_path / "b")
    assert all_of(tmp_path / "b") == records(log)


def test_a_log_for_executors_is_small_and_reads_the_same(tmp_path: Path) -> None:
    log = built(300)
    archived(tmp_path, log, per_file=2)
    (stored,) = archived_logs(str(tmp_path))
    sent = pickle.dumps(stored)
    assert len(sent) < 500
    there: ArchivedLog = pickle.loads(sent)
    archived(tmp_path, built(300), per_file=7)
    assert list(there.read(290, 400)) == records(log)[289:]


def test_only_row_groups_within_the_range_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = built(40)
    archived(tmp_path, log, per_file=20)
    read: list[tuple[int, int]] = []
    whole = parquet.ParquetFile.iter_batches

    def counted(
        self: parquet.ParquetFile, rows: int, groups: list[int], names: list[str]
    ) -> object:
        columns = [self.metadata.row_group(group).column(0) for group in groups]
        read.extend((one.statistics.min, one.statistics.max) for one in columns)
        return whole(self, rows, groups, names)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    (stored,) = archived_logs(str(tmp_path))
    assert [sequence for sequence, _ in stored.read(27, 31)] == [27, 28, 29, 30, 31]
    assert read == [(26, 30), (31, 35)]


def test_memory_is_bounded_by_the_batch_size(tmp_path: Path) -> None:
    log = built(64, 1 << 20)
    with open_writer(tmp_path, log.stream, NODE) as writer:
        writer.add(stage(writer, enumerate(log.records, 1), group=64))
    (stored,) = archived_logs(str(tmp_path))
    before, most = pa.total_allocated_bytes(), 0
    for at, (sequence, data) in enumerate(stored.read(1, 64), 1):
        assert sequence == at
        assert data == log.records[at - 1]
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 24 << 20


def test_a_clock_that_was_set_back_over_midnight(tmp_path: Path) -> None:
    """A file is of one day; records of two days in turn are read in order all the same."""
    midnight = (BEGIN_MS // DAY_MS + 1) * DAY_MS
    log = LogBuilder()
    times = [-2000, -1000, 0, 1000, -1500, -500, 500, 1500]
    for time_ms in times:
        publish(log, 1, time_ms=midnight + time_ms)
    publish(log, 4)
    (segment, behind) = archived(tmp_path, log, per_file=8)
    assert [segment.first, segment.last, behind.first] == [1, 8, 9]
    assert [segment.begins_ms, segment.ends_ms] == [midnight - 2000, midnight + 1500]
    assert len(segment.files) == 2
    assert len({file.name.split("/")[0] for file in segment.files}) == 2
    rows = records(log)
    (stored,) = archived_logs(str(tmp_path))
    for first, last in itertools.combinations(range(1, 13), 2):
        assert list(stored.read(first, last)) == rows[first - 1 : last]


def test_several_nodes_in_one_archive(tmp_path: Path) -> None:
    logs = [LogBuilder(f"n{number}") for number in range(3)]
    for log in logs:
        publish(log, 3)
        with open_writer(tmp_path, log.stream, f"node={log.node}") as writer:
            writer.add(stage(writer, enumerate(log.records, 1)))
    found = archived_logs(str(tmp_path))
    assert [one.stream for one in found] == [log.stream for log in logs]
    for one, log in zip(found, logs, strict=True):
        assert [data for _, data in one.read(1, 3)] == log.records


# ------------------------------------------------------------------------------------ old days


def seqs(directory: Path | str, **options: str) -> list[int]:
    """What the source reads of an archive alone."""
    reader = LogReader(SourceOptions.read({"archive": str(directory), "columns": "seq", **options}))
    found: list[int] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            found += batch.column("seq").to_pylist()
    return found


def test_records_after_removed_days_are_read(tmp_path: Path) -> None:
    log = LogBuilder(step_ms=DAY_MS // 4)
    publish(log, 80)
    segments = archived(tmp_path, log, per_file=4)
    times = [decode_record(at, data).time_ms for at, data in enumerate(log.records, 1)]
    first = segments[10].first
    for segment in segments[:10]:
        for file in segment.files:
            (tmp_path / NODE / file.name).unlink()
    for begin in (first, first + 1, first + 2, 80):
        assert seqs(tmp_path, **{"from": str(begin)}) == [*range(begin, 81)]
        assert seqs(tmp_path, **{"from": iso(times[begin - 1])}) == [*range(begin, 81)]
    begin = iso(times[first - 1])
    assert seqs(tmp_path, **{"from": begin, "until": iso(times[69])}) == [*range(first, 71)]
    assert seqs(tmp_path, partitions="9", **{"from": str(first)}) == [*range(first, 81)]
    with pytest.raises(MarkedError, match=f"{segments[9].files[0].name} of the archive is missing"):
        seqs(tmp_path, **{"from": str(first - 1)})


def test_times_are_looked_up_in_the_ledger_as_they_are_in_the_log(tmp_path: Path) -> None:
    log = LogBuilder(step_ms=100)
    publish(log, 60)
    archived(tmp_path, log, per_file=7)
    (stored,) = archived_logs(str(tmp_path))
    times = [decode_record(at, data).time_ms for at, data in enumerate(log.records, 1)]
    for time_ms in range(times[0] - 100, times[-1] + 200, 50):
        assert RecordTimes(stored).last_until(time_ms) == bisect.bisect_right(times, time_ms)


def test_times_are_looked_up_in_a_log_whose_clock_jumped(tmp_path: Path) -> None:
    log = LogBuilder(step_ms=100)
    for jump_ms in (0, -1550, 30_000, -29_000):
        if jump_ms:
            log.jump(jump_ms)
        publish(log, 9)
    archived(tmp_path, log, per_file=7)
    (stored,) = archived_logs(str(tmp_path))
    times = [decode_record(at, data).time_ms for at, data in enumerate(log.records, 1)]
    for time_ms in range(min(times) - 100, max(times) + 200, 50):
        looked_up = RecordTimes(stored)
        later = [at for at, one in enumerate(times) if one > time_ms]
        assert looked_up.last_until(time_ms) == (later[0] if later else len(times))
        earlier = [at for at, one in enumerate(times, 1) if one <= time_ms]
        assert looked_up.all_until(time_ms) == (earlier[-1] if earlier else 0)


def test_a_file_that_another_one_replaced_is_noticed_at_its_end(tmp_path: Path) -> None:
    """A reader behind it takes the previous link from the ledger."""
    log, other = built(20), built(9)
    publish(other, 1, 21)
    archived(tmp_path / "a", log)
    archived(tmp_path / "b", other)
    old, new = files(tmp_path / "a")[0], files(tmp_path / "b")[0]
    old.write_bytes(new.read_bytes())
    found = lines(tmp_path / "a")
    found[1]["files"] = lines(tmp_path / "b")[1]["files"]
    write_lines(tmp_path / "a", found)
    assert seqs(tmp_path / "a", **{"from": "11"}) == [*range(11, 21)]
    for options in ({}, {"until": "10"}, {"partitions": "2"}):
        with pytest.raises(MarkedError, match=r"record 1[01] (is not the one that|does not cont)"):
            seqs(tmp_path / "a", **options)


# ------------------------------------------------------------------------------ for a command


def looked_up(archive: Path | str, at: str | None = None, begin: str | None = None) -> Found:
    """Find an archive alone as a command does, before Spark starts."""

    async def look() -> Found:
        async with contextlib.AsyncExitStack() as stack:
            flags = SparkFlags(SourceFlags(), archive=str(archive))
            found = await find(stack, stack, flags)
            options = await until(found, None if at is None else parse_point(at))
            options |= since(found, None if begin is None else parse_point(begin))
            assert options == {
                name: given for name, given in (("until", at), ("from", begin)) if given
            }
            return found

    return asyncio.run(look())


def two_nodes(directory: Path) -> None:
    for log in (LogBuilder("n1"), LogBuilder("n2")):
        publish(log, 9)
        with open_writer(directory, log.stream, f"node={log.node}") as writer:
            writer.add(stage(writer, enumerate(log.records, 1)))


def test_a_command_finds_an_archive_without_a_broker(tmp_path: Path) -> None:
    archived(tmp_path, built(9))
    found = looked_up(tmp_path, "7.1", "3")
    assert found.options == {"archive": str(tmp_path), "stream": "*"}
    assert found.streams == ("FOLDMQ_LOG_n1",)
    assert not found.logs
    looked_up(tmp_path, "2026-11-20T09:30:00.000Z", "2023-11-14T22:13:20.000Z")


def test_missing_parts_of_an_archive_are_reported_before_spark_starts(tmp_path: Path) -> None:
    archived(tmp_path / "one", built(9))
    with pytest.raises(BadOption, match=r"until = 12.3 is beyond the end of log FOLDMQ_LOG_n1"):
        looked_up(tmp_path / "one", "12.3")
    with pytest.raises(BadOption, match="from = 10 is beyond the end"):
        looked_up(tmp_path / "one", None, "10")
    with pytest.raises(NoDirectory, match=r"there is no directory .*/none"):
        looked_up(tmp_path / "none")
    two_nodes(tmp_path / "two")
    time = "2023-11-14T22:13:20.000Z"
    assert looked_up(tmp_path / "two", time).streams == ("FOLDMQ_LOG_n1", "FOLDMQ_LOG_n2")
    for at, begin in (("4", None), (None, "4")):
        with pytest.raises(UsageError, match=r"there are 2 on archive .*/two: give --node"):
            looked_up(tmp_path / "two", at, begin)


def test_a_command_shows_no_secret_of_an_archive(capsys: pytest.CaptureFixture[str]) -> None:
    async def look(flags: SparkFlags) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await find(stack, stack, flags)

    uri = "s3://AKIAKEY:TopSecret@bucket/a?nonsense=TopSecret"
    with pytest.raises(NoDirectory) as refusal:
        asyncio.run(look(SparkFlags(SourceFlags(verbose=True), archive=uri)))
    assert capsys.readouterr().err == "foldmq: reading archive s3://bucket/a\n"
    assert "Secret" not in str(refusal.value)


# ------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("where", "plain"),
    [
        ("/a/b@c?x", "/a/b@c?x"),
        ("file:///a@b?c", "file:///a@b?c"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("s3://AKIAKEY:TopSecret@bucket/arch@x?sig=TopSecret", "s3://bucket/arch@x"),
        ("s3a://AKIAKEY:Top%2FSecret@bucket/a", "s3a://bucket/a"),
        ("s3://AKIAKEY:Top/TopSecret@bucket/a", "s3://bucket/a"),
        ("s3://AKIAKEY:Top@TopSecret@bucket/a#TopSecret", "s3://bucket/a"),
        ("hdfs://host:8020/user@x/a", "hdfs://host:8020/user@x/a"),
        ("hdfs://[::1]:8020/user@x/a", "hdfs://[::1]:8020/user@x/a"),
        ("abfss://box@acc.example/a?sig=TopSecret", "abfss://box@acc.example/a"),
        ("abfs://acc:TopSecret@host/x", "abfs://host/x"),
    ],
)
def test_a_uri_is_shown_without_secrets(where: str, plain: str) -> None:
    folder = Directory(where)
    assert str(folder) == plain
    assert "Secret" not in repr(folder)
    arrow = without_secrets(f"Cannot parse '{where.replace('s3a', 's3')}': {where}", where)
    assert "Secret" not in arrow
    assert arrow.endswith(f": {plain}")


def test_parts_of_secrets_in_a_uri_are_not_shown() -> None:
    where = "s3a://AKIAKEY:Top%2FSecret@bucket/a?region=eu-1&sig=ab%3Dcd"
    said = "key AKIAKEY, secret Top/Secret (Top%2FSecret), signature ab=cd, region eu-1"
    hidden = "key ..., secret ... (...), signature ..., region eu-1"
    assert without_secrets(said, where) == hidden


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:TopSecret@bucket/a?nonsense=TopSecret",
        "s3a://AKIAKEY:TopSecret@bucket/a?region=no region",
        "s3://AKIAKEY:Top/TopSecret@bucket/a",
        "gs://AKIAKEY:TopSecret@bucket/a",
        "nosuch://AKIAKEY:TopSecret@bucket/a",
    ],
)
def test_no_message_shows_secrets_of_a_uri(uri: str) -> None:
    with pytest.raises(MarkedError) as failed:
        seqs(uri)
    assert f"{uri.partition(':')[0]}://bucket/a cannot be read: " in str(failed.value)
    assert "Secret" not in str(failed.value)
    assert "AKIAKEY" not in str(failed.value)
    assert "Secret" not in repr(SourceOptions.read({"archive": uri}))


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///a", "s3a://", "s3://key:secret@/a", "s3://?region=r"]
)
def test_a_uri_without_a_bucket(uri: str) -> None:
    with pytest.raises(NoDirectory, match=r"names no bucket: write s3://BUCKET/PATH"):
        archived_logs(uri)


# ------------------------------------------------------------------------------- nothing, damage


def test_a_missing_archive(tmp_path: Path) -> None:
    with pytest.raises(NoDirectory, match=r"there is no directory .*/nowhere") as none:
        archived_logs(str(tmp_path / "nowhere"))
    assert none.value.exit_code == 66
    with pytest.raises(NoArchive, match="there is no archive in"):
        archived_logs(str(tmp_path))
    with open_writer(tmp_path, "FOLDMQ_LOG_n1", NODE):
        pass
    with pytest.raises(NoArchive):
        archived_logs(str(tmp_path))
    with pytest.raises(NoDirectory, match="cannot be read"):
        archived_logs("nosuch://place/a")


def test_a_damaged_file_is_named_and_never_read_as_something_else(tmp_path: Path) -> None:
    log = built(30, 200)
    archived(tmp_path, log, per_file=30)
    rows = records(log)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    found = 0
    for at in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        file.write_bytes(broken)
        got, error = read_until_damage(tmp_path)
        if error is not None:
            assert str(file) in str(error)
            assert f"from record {len(got) + 1} on" in str(error)
            assert "\n" not in str(error)
            found += 1
        # What is given before the damage is found is right, or its own checksum says so.
        for sequence, data in got:
            if data != rows[sequence - 1][1]:
                with pytest.raises(CorruptLog):
                    decode_record(sequence, data)
    assert found > len(whole) // 7 // 5


def read_until_damage(
    directory: Path,
) -> tuple[list[tuple[int, bytes]], ArchiveDamaged | None]:
    (stored,) = archived_logs(str(directory))
    got: list[tuple[int, bytes]] = []
    try:
        got.extend(stored.read(1, 30))
    except ArchiveDamaged as error:
        return got, error
    return got, None


@pytest.mark.parametrize("what", ["missing", "short", "long", "empty"])
def test_a_file_that_is_not_the_one_that_was_written(tmp_path: Path, what: str) -> None:
    archived(tmp_path, built(30))
    file = files(tmp_path)[1]
    whole = file.read_bytes()
    changed = {"short": whole[:-1], "long": whole + b"x", "empty": b""}
    if what == "missing":
        file.unlink()
    else:
        file.write_bytes(changed[what])
    (stored,) = archived_logs(str(tmp_path))
    got = stored.read(1, 30)
    assert [next(got)[0] for _ in range(10)] == [*range(1, 11)]
    with pytest.raises(ArchiveDamaged, match=f"file {file} of the archive is") as damage:
        next(got)
    assert damage.value.exit_code == 65
    assert [sequence for sequence, _ in stored.read(21, 30)] == [*range(21, 31)]


def test_a_record_is_found_by_its_file(tmp_path: Path) -> None:
    archived(tmp_path, built(30))
    (stored,) = archived_logs(str(tmp_path))
    assert stored.place(12) == f"file {files(tmp_path)[1]} of the archive"
    assert stored.place(99) == f"the archive {tmp_path}/{NODE}"


def test_every_record_is_checked(tmp_path: Path) -> None:
    log = built(6)
    log.damage(4)
    with open_writer(tmp_path, log.stream, NODE) as writer:
        path = writer.staging / "date=2023-11-14"
        path.mkdir()

        def write(rows: list[tuple[int, bytes]]) -> list[parquet_files.RecordRun]:
            seq, data = zip(*rows, strict=True)
            parquet.write_table(pa.table({"seq": seq, "data": data}), path / "f.parquet")
            folder = Directory(str(writer.staging))
            return list(parquet_files.check_file(folder, "date=2023-11-14/f.parquet"))

        rows = records(log)
        with pytest.raises(CorruptLog, match="record 4 has a wrong checksum"):
            write(rows)
        with pytest.raises(CorruptLog, match="record 4 does not continue record 3"):
            write([*rows[:3], (4, log.records[4])])
        # A missing record ends a run; the reader of the runs detects it.
        runs = write([*rows[:2], *rows[4:]])
        assert [(run.first, run.last) for run in runs] == [(1, 2), (5, 6)]


# ------------------------------------------------------------------------------------- ledger


def lines(directory: Path) -> list[dict[str, object]]:
    return [
        orjson.loads(line) for line in (directory / NODE / LEDGER_FILE).read_bytes().splitlines()
    ]


def write_lines(directory: Path, found: list[dict[str, object]]) -> None:
    (directory / NODE / LEDGER_FILE).write_bytes(
        b"".join(orjson.dumps(line) + b"\n" for line in found)
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.pop(2), r"line 3 does not continue the one before"),
        (lambda found: found[2].update(previous="00" * 32), "line 3 does not continue"),
        (lambda found: found[1].update(link="00" * 32), "line 3 does not continue"),
        (lambda found: found[1].update(last=9), "line 3 does not continue"),
        (lambda found: found[3].pop("link"), "line 4 is not a segment"),
        (lambda found: found[3].update(first="21"), "line 4 is not a segment"),
        (lambda found: found[3].update(files=[]), "line 4 is not a segment"),
        (lambda found: found[3].update(files=[["a"]]), "line 4 is not a segment"),
        (lambda found: found[3].update(last=20), "line 4 is not a segment"),
        (lambda found: found[3].update(link="g" * 64), "line 4 is not a segment"),
        (lambda found: found[0].pop("stream"), "does not name its log"),
    ],
)
def test_a_ledger_that_does_not_fit_together(
    tmp_path: Path, change: Callable[[list[dict[str, object]]], object], why: str
) -> None:
    archived(tmp_path, built(30))
    found = lines(tmp_path)
    change(found)
    write_lines(tmp_path, found)
    with pytest.raises(ArchiveDamaged, match=why):
        archived_logs(str(tmp_path))
    with (
        pytest.raises(ArchiveDamaged, match=why),
        open_writer(tmp_path, "FOLDMQ_LOG_n1", NODE),
    ):
        pass


def test_a_ledger_with_a_line_that_is_none(tmp_path: Path) -> None:
    archived(tmp_path, built(30))
    path = tmp_path / NODE / LEDGER_FILE
    for line in (b"nonsense\n", b"\x00\x00\n", b"[1]\n"):
        whole = path.read_bytes()
        path.write_bytes(whole + line)
        with pytest.raises(ArchiveDamaged, match="line 5 cannot be read"):
            archived_logs(str(tmp_path))
        path.write_bytes(whole)


def test_a_later_ledger_is_refused_and_a_field_that_is_added_is_not(tmp_path: Path) -> None:
    log = built(30)
    archived(tmp_path, log)
    found = lines(tmp_path)
    found[1]["more"] = found[0]["more"] = {"of": "this"}
    write_lines(tmp_path, found)
    assert all_of(tmp_path) == records(log)
    found[0]["archive"] = 2
    write_lines(tmp_path, found)
    with pytest.raises(LaterArchive, match="has format 2, this foldmq reads format 1") as later:
        archived_logs(str(tmp_path))
    assert later.value.exit_code == 78


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    archived(tmp_path, built(30))
    whole = (tmp_path / NODE / LEDGER_FILE).read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        if length < ends[0]:
            with pytest.raises(NoArchive, match="nothing is archived yet"):
                parse_ledger(whole[:length], "x")
        else:
            segments = sum(end <= length for end in ends) - 1
            assert len(parse_ledger(whole[:length], "x").segments) == segments


def test_an_archive_that_was_replaced_meanwhile(tmp_path: Path) -> None:
    archived(tmp_path / "a", built(30))
    (stored,) = archived_logs(str(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    archived(tmp_path / "a", built(20))
    with pytest.raises(NoArchive, match="no longer has record 30"):
        list(stored.read(1, 30))
