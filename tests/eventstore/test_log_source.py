"""Reading a log as a library: no command line, no settings."""

import contextlib
from pathlib import Path

import pytest

from eventstore.datadir import DataDir
from eventstore.errors import NoLog
from eventstore.reading.log_location import open_directory, stream_of
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
