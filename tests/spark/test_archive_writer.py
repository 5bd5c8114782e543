"""Whatever happens to a writer, an archive contains each record once, and can be continued."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from archives import NODE, all_of, archived, built, in_ledger, publish, records, stage
from harness.logs import LogBuilder
from harness.powercut import Disk, UnusableError

from eventstore.errors import CorruptLog
from spark.runtime.errors import NotWritable, OutOfDisk
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import LEDGER_FILE
from spark.tables.archive_log import archived_logs
from spark.tables.archive_writer import ArchiveBusy

ROOT = Path(__file__).parents[2]


def names(directory: Path) -> set[str]:
    """Everything in the part of the node, but for directories."""
    part = directory / NODE
    return {str(path.relative_to(part)) for path in part.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------- the chain


def test_only_continuing_records_are_added(tmp_path: Path) -> None:
    log, other = built(40), LogBuilder()
    publish(other, 40, 30)
    archived(tmp_path, log, 20)
    for rows, why in (
        (records(log, 22, 30), "record 21 is missing: record 22 follows"),
        (records(log, 15, 30), "record 21 is missing: record 15 follows"),
        (records(other, 21, 30), "record 21 does not continue record 20"),
        (records(log, 21, 24) + records(log, 26, 30), "record 25 is missing: record 26 follows"),
    ):
        with open_writer(tmp_path, log.stream, NODE) as writer:
            runs = stage(writer, rows)
            with pytest.raises(CorruptLog, match=why):
                writer.add(runs)
        assert all_of(tmp_path) == records(log, 1, 20)
    with open_writer(tmp_path, log.stream, NODE) as writer:
        one, another = (
            stage(writer, records(log, 21, 30)),
            stage(writer, records(other, 31, 40), "g"),
        )
        with pytest.raises(CorruptLog, match="record 31 does not continue record 30"):
            writer.add([*another, *one])
    archived(tmp_path, log)
    assert all_of(tmp_path) == records(log, 1, 40)


def test_an_archive_may_begin_where_a_log_was_cut(tmp_path: Path) -> None:
    log = built(40)
    with open_writer(tmp_path, log.stream, NODE) as writer:
        writer.add(stage(writer, records(log, 17, 40)))
    (stored,) = archived_logs(str(tmp_path))
    assert (stored.first, stored.last) == (17, 40)
    assert list(stored.read(1, 99)) == records(log, 17, 40)


def test_nothing_new_changes_nothing(tmp_path: Path) -> None:
    log = built(10)
    archived(tmp_path, log)
    before = {name: (tmp_path / NODE / name).read_bytes() for name in names(tmp_path)}
    with open_writer(tmp_path, log.stream, NODE) as writer:
        assert writer.ledger.last == 10
    assert {name: (tmp_path / NODE / name).read_bytes() for name in names(tmp_path)} == before


# ------------------------------------------------------------------------------------ alone


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    log = built(10)
    with open_writer(tmp_path, log.stream, NODE):
        with (
            pytest.raises(
                ArchiveBusy, match=rf"is being written by process {os.getpid()} on "
            ) as busy,
            open_writer(tmp_path, log.stream, NODE),
        ):
            pass
        assert busy.value.exit_code == 75
        with open_writer(tmp_path, "FOLDMQ_LOG_n2", "node=n2"):
            pass
    archived(tmp_path, log)


def test_a_writer_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from spark.tables.archive_directory import open_writer\n"
        f"with open_writer(Path({str(tmp_path)!r}), 'FOLDMQ_LOG_n1', {NODE!r}):\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(ArchiveBusy, match=f"process {process.pid} "):
            archived(tmp_path, built(10))
        process.kill()
    archived(tmp_path, built(10))
    assert len(all_of(tmp_path)) == 10


# ----------------------------------------------------------------------------------- killed


class Killed(BaseException):
    """The process ends here."""


class Fuse:
    """Counts what changes the disk; from one such step on nothing does any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.dead = False
        self.steps: list[str] = []
        for module, name in (
            (os, "fsync"), (os, "write"), (os, "truncate"),
            (Path, "replace"), (Path, "mkdir"), (Path, "unlink"), (shutil, "rmtree"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, self.step(name, getattr(module, name)))

    def step(self, name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def take(*args: Any, **kwargs: Any) -> Any:
            if self.left is None:
                return whole(*args, **kwargs)
            if self.dead:
                if name == "rmtree":  # what is done on the way out, and would not be
                    return None
                raise Killed
            self.left -= 1
            if self.left < 0:
                self.dead = True
                if name == "write":  # a part of it is in the file
                    whole(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Killed
            self.steps.append(name)
            return whole(*args, **kwargs)

        return take


def test_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents of the ledger stay, nothing is there twice, and the next writer continues."""
    log = built(30)
    fuse = Fuse(monkeypatch)
    begun = {"half": 12, "new": 0}
    counts: dict[str, int] = {}
    for kind, before in begun.items():
        for steps in range(200):
            directory = tmp_path / f"{kind}{steps}"
            if before:
                archived(directory, log, before, per_file=6)
            fuse.left, fuse.dead = steps, False
            try:
                archived(directory, log, per_file=6)
            except Killed:
                killed = True
            else:
                killed = False
            fuse.left = None
            got = all_of(directory) if directory.is_dir() else []
            assert got == records(log, 1, len(got))
            assert len(got) in range(before, 31, 6)
            # The next one first finishes less, then all.
            archived(directory, log, max(20, len(got)), per_file=7)
            archived(directory, log, per_file=7)
            assert all_of(directory) == records(log, 1, 30)
            assert names(directory) == {LEDGER_FILE, "_foldmq/lock", *in_ledger(directory)}
            shutil.rmtree(directory)
            if not killed:
                counts[kind] = steps
                break
    assert counts["new"] > counts["half"] > 15


# ------------------------------------------------------------------------------- power cuts


@pytest.fixture(params=["kept", "lost"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    try:
        disk = Disk(tmp_path / "disk", request.param)
    except UnusableError as error:
        pytest.skip(f"no disk whose power can be cut: {error}")
    yield disk
    disk.close()


def power_cut(disk: Disk) -> None:
    disk.cut()
    disk.power_on()


def test_reported_records_survive_a_power_cut(disk: Disk) -> None:
    log = built(30)
    archived(disk.place / "deep" / "er", log, 12)
    power_cut(disk)
    assert all_of(disk.place / "deep" / "er") == records(log, 1, 12)
    archived(disk.place / "deep" / "er", log)
    power_cut(disk)
    assert all_of(disk.place / "deep" / "er") == records(log, 1, 30)


def test_unsynced_files_are_lost(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: that nothing is lost is because it was synced."""
    log = built(30)
    archived(disk.place / "a", log, 12)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _descriptor: None)
        archived(disk.place / "a", log)
    assert len(all_of(disk.place / "a")) == 30
    power_cut(disk)
    assert all_of(disk.place / "a") == records(log, 1, 12)


def test_power_cut_at_any_step(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = built(30)
    fuse = Fuse(monkeypatch)
    for steps in range(100):
        directory = disk.place / f"a{steps}"
        archived(directory, log, 12, per_file=6)
        fuse.left, fuse.dead = steps, False
        try:
            archived(directory, log, per_file=6)
        except Killed:
            killed = True
        else:
            killed = False
        fuse.left = None
        power_cut(disk)
        got = all_of(directory)
        assert got == records(log, 1, len(got))
        assert len(got) in (range(12, 31, 6) if killed else [30])
        archived(directory, log, per_file=7)
        assert all_of(directory) == records(log, 1, 30)
        shutil.rmtree(directory)
        if not killed:
            break
    assert steps > 15


# -------------------------------------------------------------------------------- the disk


def test_records_are_on_disk_before_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, then their names, then the line of the ledger; that is synced last."""
    done: list[tuple[str, str]] = []
    synced, moved, written = os.fsync, Path.replace, os.write

    def name_of(descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path))

    def sync(descriptor: int) -> None:
        done.append(("sync", name_of(descriptor)))
        synced(descriptor)

    def move(self: Path, place: Path) -> Path:
        done.append(("move", str(place.relative_to(tmp_path))))
        return moved(self, place)

    def write(descriptor: int, data: bytes) -> int:
        done.append(("write", name_of(descriptor)))
        return written(descriptor, data)

    log = built(10)
    with open_writer(tmp_path, log.stream, NODE) as writer:
        runs = stage(writer, records(log, 1, 10))
        staged = str((writer.staging / runs[0].file).relative_to(tmp_path))
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(Path, "replace", move)
        (segment,) = writer.add(runs)
    (file,) = segment.files
    place, ledger = f"{NODE}/{file.name}", f"{NODE}/{LEDGER_FILE}"
    assert done == [
        ("sync", staged),
        ("move", place),
        ("sync", str(Path(place).parent)),
        ("sync", NODE),
        ("write", ledger),
        ("sync", ledger),
    ]


def test_a_line_that_was_not_synced_is_synced_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notifies the broker, which cuts the log: the writer of the line may have been killed."""
    archived(tmp_path, built(10))
    synced: list[str] = []
    whole = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        whole(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with open_writer(tmp_path, "FOLDMQ_LOG_n1", NODE):
        assert str(tmp_path / NODE / LEDGER_FILE) in synced


@pytest.mark.parametrize("behind", ["new", f"new/{NODE}/{LEDGER_FILE}"])
def test_directories_that_were_not_synced_are_synced_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    log = built(10)
    directory = tmp_path / "new" / "deep"
    behind = behind.replace("new/", "new/deep/")
    synced: set[str] = set()
    whole = os.fsync

    def sync(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.is_relative_to(tmp_path):
            synced.add(str(place.relative_to(tmp_path)))
        whole(descriptor)

    def kill(descriptor: int) -> None:
        if (tmp_path / behind).exists():
            raise Killed
        whole(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            archived(directory, log)
    assert (directory / NODE).is_dir()
    monkeypatch.setattr(os, "fsync", sync)
    archived(directory, log)
    own = f"new/deep/{NODE}"
    assert synced >= {".", "new", "new/deep", own, f"{own}/_foldmq", f"{own}/{LEDGER_FILE}"}


def test_a_line_that_cannot_be_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = built(20)
    archived(tmp_path, log, 10)
    whole = os.fsync

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == Path(LEDGER_FILE).name:
            raise OSError(errno.EIO, "Input/output error")
        whole(descriptor)

    with open_writer(tmp_path, log.stream, NODE) as writer:
        runs = stage(writer, records(log, 11, 20))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", sync)
            with pytest.raises(OutOfDisk, match=r"the disk of the archive .* fails") as failed:
                writer.add(runs)
    assert failed.value.exit_code == 74
    assert len(all_of(tmp_path)) == 10
    archived(tmp_path, log)
    assert all_of(tmp_path) == records(log, 1, 20)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("written", [0, 1, 100])
def test_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, written: int
) -> None:
    log = built(20)
    archived(tmp_path, log, 10)
    whole = os.write

    def write(descriptor: int, data: bytes) -> int:
        if written:
            whole(descriptor, bytes(data)[:written])
        raise OSError(code, "full")

    with open_writer(tmp_path, log.stream, NODE) as writer:
        runs = stage(writer, records(log, 11, 20))
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", write)
            with pytest.raises(OutOfDisk, match=r"no space left for the archive .*: its contents"):
                writer.add(runs)
    assert all_of(tmp_path) == records(log, 1, 10)
    assert names(tmp_path) == {LEDGER_FILE, "_foldmq/lock", *in_ledger(tmp_path)}
    archived(tmp_path, log)
    assert all_of(tmp_path) == records(log, 1, 20)


def test_leftovers_of_a_failed_run_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = built(30)
    archived(tmp_path, log, 10)

    def fail(*_anything: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken, open_writer(tmp_path, log.stream, NODE) as writer:
        runs = stage(writer, records(log, 11, 20))
        broken.setattr(os, "write", fail)
        broken.setattr(Path, "unlink", fail)
        with pytest.raises(OutOfDisk):
            writer.add(runs)
    assert len(names(tmp_path)) > len({LEDGER_FILE, "_foldmq/lock", *in_ledger(tmp_path)})
    archived(tmp_path, log, per_file=20)
    assert all_of(tmp_path) == records(log, 1, 30)
    assert names(tmp_path) == {LEDGER_FILE, "_foldmq/lock", *in_ledger(tmp_path)}


def test_a_line_that_cannot_be_taken_back_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = built(20)
    archived(tmp_path, log, 10)
    synced = os.fsync

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == Path(LEDGER_FILE).name:
            os.close(descriptor)  # nor can the file be cut then
            raise OSError(errno.EIO, "Input/output error")
        synced(descriptor)

    with monkeypatch.context() as broken, open_writer(tmp_path, log.stream, NODE) as writer:
        runs = stage(writer, records(log, 11, 20))
        broken.setattr(os, "fsync", sync)
        with pytest.raises(NotWritable):
            writer.add(runs)
    assert all_of(tmp_path) == records(log, 1, 20)
    archived(tmp_path, log)
    assert all_of(tmp_path) == records(log, 1, 20)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            NotWritable, match=r"the archive cannot be written: .*file.*: Not a directory"
        ),
        open_writer(tmp_path / "file", "FOLDMQ_LOG_n1", NODE),
    ):
        pass


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """Leftovers of a killed writer are removed; foreign files and those in the ledger stay."""
    log = built(20)
    archived(tmp_path, log)
    (day,) = (tmp_path / NODE).glob("date=*")
    own = {day / "000000000021-000000000030.parquet", tmp_path / NODE / "_staging" / "x" / "y"}
    others = {day / "notes.parquet", day / "000000000021-000000000030.txt", tmp_path / "README"}
    for path in own | others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    with open_writer(tmp_path, log.stream, NODE):
        pass
    assert not any(path.exists() for path in own)
    assert all(path.exists() for path in others)
    assert all_of(tmp_path) == records(log, 1, 20)
