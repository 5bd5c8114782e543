"""The default of ``keep_bytes``: bounded by the disk, without loss of what a log already has."""

from pathlib import Path

import pytest

from cli.serve.log_bound import log_bound
from cli.settings.settings import Settings
from eventstore.datadir import DataDir

MIB = 1024 * 1024
GIB = 1024 * MIB
STREAM = "FOLDMQ_LOG_n1"


@pytest.fixture
def datadir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    """A data directory on a disk with 40 GiB of free space."""
    free_space(monkeypatch, 40 * GIB)
    return DataDir(tmp_path)


def free_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(DataDir, "free_bytes", lambda _self: size)


def hold(datadir: DataDir, size: int, stream: str = STREAM) -> None:
    """Give a log so many bytes, without writing them."""
    folder = datadir.blocks(stream)
    folder.mkdir(parents=True)
    with (folder / "1.blk").open("wb") as block:
        block.truncate(size)


def test_a_new_log_gets_a_quarter_of_the_free_space(datadir: DataDir) -> None:
    assert log_bound(Settings(), datadir).bytes == 10 * GIB


def test_the_bound_does_not_shrink_because_the_log_has_grown(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(datadir, 8 * GIB)
    free_space(monkeypatch, 32 * GIB)
    assert log_bound(Settings(), datadir, STREAM).bytes == 10 * GIB


def test_several_logs_share_the_disk(datadir: DataDir) -> None:
    assert log_bound(Settings(processes=4), datadir).bytes == 10 * GIB // 4


def test_a_larger_log_keeps_what_it_has(datadir: DataDir) -> None:
    """It is cut at three quarters of its bound: the next start finds the same bound."""
    hold(datadir, 60 * GIB)
    bound = log_bound(Settings(), datadir, STREAM)
    assert bound.bytes == 80 * GIB
    assert bound.shown(604_800) == (
        "7 d, at most 80.0 GiB (what it has now, and room to grow; set keep_bytes)"
    )


def test_a_larger_log_may_use_half_of_what_is_free(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(datadir, 60 * GIB)
    free_space(monkeypatch, 8 * GIB)
    assert log_bound(Settings(), datadir, STREAM).bytes == 64 * GIB


def test_a_small_disk(datadir: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    free_space(monkeypatch, 40 * MIB)
    assert log_bound(Settings(), datadir).bytes == 16 * MIB


@pytest.mark.parametrize(
    ("settings", "embedded", "shown"),
    [
        (Settings(keep_bytes=GIB), True, "7 d, at most 1.0 GiB (keep_bytes)"),
        (Settings(keep_bytes=0), True, "7 d (no limit)"),
        (Settings(keep=0), True, "for ever (keep = 0: no limit unless keep_bytes is set)"),
        (Settings(keep=0, keep_bytes=GIB), True, "for ever, at most 1.0 GiB (keep_bytes)"),
        (
            Settings(),
            False,
            "7 d (no limit: the space of the NATS server is not known; set keep_bytes)",
        ),
    ],
)
def test_what_the_banner_says(
    datadir: DataDir, settings: Settings, embedded: bool, shown: str
) -> None:
    assert log_bound(settings, datadir if embedded else None).shown(settings.keep) == shown


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert DataDir(tmp_path / "not" / "yet").free_bytes() > 0
