"""Reading a log as a library: no command line, no settings."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest
from storedlogs import COUNT, made, opened_for_reading, write

from eventstore.datadir import DataDir
from eventstore.errors import NoLog, StoreGone
from eventstore.format.node_events import LogEndUnproven
from eventstore.format.records import link_of
from eventstore.log.watermark import Watermark
from eventstore.reading.log_location import open_directory, stream_of
from eventstore.reading.log_source import open_log
from eventstore.reading.polling import Polling
from eventstore.reading.progress import silent


@pytest.mark.parametrize(("made", "what"), [(False, "does not exist"), (True, "contains no log")])
async def test_a_directory_without_a_log(tmp_path: Path, made: bool, what: str) -> None:
    path = tmp_path / "data"
    if made:
        path.mkdir(mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(NoLog, match=what):
            await open_directory(stack, path, None, note=print, server_log=lambda _line: None)


async def test_a_new_log_that_a_starting_broker_has_not_begun_is_not_lost(tmp_path: Path) -> None:
    datadir = DataDir(tmp_path / "data")
    datadir.lock()
    datadir.nats_config.touch(mode=0o600)
    for mark, error in ((None, NoLog), ("p1/log.mark", StoreGone), ("log.mark", StoreGone)):
        if mark is not None:
            (datadir.path / mark).parent.mkdir(mode=0o700, exist_ok=True)
            (datadir.path / mark).touch(mode=0o600)
        async with contextlib.AsyncExitStack() as stack:
            with pytest.raises(error, match="starting" if mark is None else "has no log although"):
                await open_directory(
                    stack, datadir.path, None, note=print, server_log=lambda _line: None
                )
        if mark is not None:
            (datadir.path / mark).unlink()
    datadir.unlock()


@pytest.mark.system
@pytest.mark.parametrize("live", [False, True])
def test_the_end_of_a_copy_is_not_proven_while_its_broker_starts(
    tmp_path: Path, *, live: bool
) -> None:
    stream, records = "FOLDMQ_LOG_n1", made()
    folder, copy = tmp_path / "data", tmp_path / "copy.mark"
    write(folder, records)
    own = Watermark(tmp_path / "log.mark", stream, beside=True)
    own.write(COUNT, link_of(records[-1]))
    shutil.copy(tmp_path / "log.mark", copy)
    with_copy = Watermark(copy, stream, beside=True)

    async def ends() -> list[LogEndUnproven | None]:
        async with opened_for_reading(folder) as client:
            return [
                (await open_log(client, stream, "here", live=live, mark=mark)).unproven
                for mark in (own, with_copy)
            ]

    original, copied = asyncio.run(ends())
    assert original is None
    assert copied is not None
    assert copied.reason == "copy"


def test_the_stream_of_a_directory(tmp_path: Path) -> None:
    assert stream_of(tmp_path) is None
    tmp_path.chmod(0o700)
    node = DataDir(tmp_path).node()
    assert stream_of(tmp_path) == f"FOLDMQ_LOG_{node}"


def test_silent_progress_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with silent("reading", 3) as update:
        update(1)
    assert capsys.readouterr() == ("", "")


async def test_polling_ends() -> None:
    polling = Polling(0.0, -1.0)
    await polling.wait()
    assert polling.expired
    assert not Polling(0.0, 3600.0).expired
