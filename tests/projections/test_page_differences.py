"""The difference of two moments on the Time page, with an index and without."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from harness.logs import LogBuilder
from indexedlogs import IndexedSource, build, node_of, use

from cli.logs import next_commands
from cli.web import state_diffs
from cli.web.background_fold import Folding
from cli.web.state_diffs import StateDiff, StateDiffs
from cli.web.web_log_client import WebLogClient
from eventstore.errors import UsageError
from eventstore.format.events import MessagePublished, SessionClosed, SessionOpened, Subscribed

RETAINED_TEXT = ", set between the moments"


@pytest.fixture(autouse=True)
def _of_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are as they are, whichever broker a test before has selected."""
    monkeypatch.setattr(next_commands, "_own", [])


class Link:
    """What pages read a log with."""

    epoch = 1

    def __init__(self, source: IndexedSource) -> None:
        self.source = source

    @contextlib.asynccontextmanager
    async def log(self, name: str = "") -> AsyncIterator[IndexedSource]:
        assert name in ("", "n")
        yield self.source


def devices(count: int) -> IndexedSource:
    """Each device opens a session and sets a retained message; then some change."""
    log = LogBuilder("n")
    for number in range(count):
        name = f"d{number:03}"
        log.record(SessionOpened(name, False, False, 4), Subscribed(name, [("a/#", 1)]))
        log.record(
            MessagePublished(name, 1, True, [f"state/{name}"], [], [1], 2, 0, 1), payloads=[b"on"]
        )
    for number in range(0, count, 4):
        log.record(SessionClosed(f"d{number:03}", "disconnect"))
    log.record(
        MessagePublished("d001", 1, True, ["state/d001"], [], [2], 3, 0, 1), payloads=[b"off"]
    )
    log.record(MessagePublished("d002", 1, True, ["state/d002"], [], [2], 0, 0, 1), payloads=[b""])
    return IndexedSource(node_of(log.records))


async def compare(source: IndexedSource, before: int, after: int, log: str = "") -> StateDiff:
    diffs = StateDiffs(cast("WebLogClient", Link(source)))
    diff: StateDiff | Folding = Folding(0, 0)
    while not isinstance(diff, StateDiff):
        diff = await diffs.find(before, after, 5, log)
    diffs.close()
    return diff


@pytest.mark.parametrize("indexed", [True, False])
async def test_changes_are_listed_and_counted(tmp_path: Path, *, indexed: bool) -> None:
    source = devices(8)
    if indexed:
        use(source, build(source, tmp_path, source.last, 5))
    diff = await compare(source, 16, source.last)
    assert diff.lines[:2] == ["~ session d000", "    no longer connected"]
    assert [line for line in diff.lines if "d004" in line] == ["~ session d004"]
    assert f"* retained state/d001, 3 B{RETAINED_TEXT}" in diff.lines
    assert "- retained state/d002, removed between the moments" in diff.lines
    assert diff.totals[0] == "sessions: 2 changed"
    assert diff.totals[1] == "retained messages: 1 removed, 1 set"
    assert not diff.notes
    assert (await compare(source, 4, 4)).lines == []
    assert (await compare(source, 2, 4)).totals[0] == "sessions: 1 added"


async def test_only_the_records_beside_the_moments_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is too long to be folded on a page."""
    source = devices(300)
    use(source, build(source, tmp_path, source.last, 50))
    monkeypatch.setattr(state_diffs, "MAX_RECORDS", 10)
    diff = await compare(source, source.last - 5, source.last)
    assert diff.totals == ["sessions: 3 changed", "retained messages: 1 removed, 1 set"]
    assert source.read <= 10
    assert len(source.asked) <= 50
    longer = await compare(source, 100, source.last - 5, "n")
    assert longer.totals[0].startswith("sessions: 250 added, ")
    note = longer.notes[0]
    assert note.startswith("retained messages are compared here if at most 10 records lie between")
    assert note.endswith(f"foldmq diff 100 {source.last - 5} --node n shows all")


async def test_a_list_is_cut_and_names_the_command_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = devices(8)
    use(source, build(source, tmp_path, source.last, 5))
    monkeypatch.setattr(state_diffs, "MAX_LINES", 3)
    diff = await compare(source, 1, source.last)
    assert len(diff.lines) == 3
    assert diff.totals[0] == "sessions: 7 added, 1 changed"
    assert diff.notes == [f"more than 3 lines: foldmq diff 1 {source.last} shows all"]


async def test_a_log_without_index_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    source = devices(8)
    monkeypatch.setattr(state_diffs, "MAX_RECORDS", 10)
    with pytest.raises(UsageError, match=r"at most 10 records, .* foldmq diff 9 12 shows all"):
        await compare(source, 9, 12)
