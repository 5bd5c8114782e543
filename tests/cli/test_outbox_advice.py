"""What doctor says of destinations: how urgent, and the next command."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from topsamples import status

from cli.commands.outbox_advice import advise_on_destinations, destinations_text
from cli.logs.next_commands import NextCommands
from cli.logs.source_flags import SourceFlags
from cli.top.figures import top_summary
from cli.top.watched_broker import Frame, History
from eventstore.errors import CorruptLog

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ROW: dict[str, Any] = {
    "name": "erp",
    "state": "sending",
    "error": "",
    "since_ms": HOUR_MS - 50_000,
    "behind_ms": 0,
    "records_behind": 0,
    "kept_s": 604_800.0,
    "refused": 0,
    "losses": 0,
}
NAMES = ("away", "idle", "late", "well")


def advice(**changed: Any) -> list[tuple[str, str, str]]:
    status = {"destinations": [{**ROW, **changed}], "time_ms": HOUR_MS}
    return [(one.severity, one.title, one.next) for one in advise_on_destinations(status)]


def test_a_destination_that_keeps_up_is_no_problem() -> None:
    assert advice() == []
    assert advice(state="retrying", behind_ms=59_000) == []
    assert list(advise_on_destinations({})) == []


def test_a_destination_that_cannot_be_reached_is_named_although_nothing_waits() -> None:
    found = advice(state="retrying", since_ms=0, error="NATS is not available")
    assert found == [("warning", "cannot be reached", "foldmq outbox show erp")]


@pytest.mark.parametrize(
    ("behind_ms", "kept_s", "severity"),
    [
        (60_000, 604_800.0, "notice"),
        (HOUR_MS, 604_800.0, "warning"),
        (HOUR_MS // 2, 4 * 3600.0, "warning"),
        (5 * DAY_MS, 604_800.0, "warning"),
        (6 * DAY_MS, 604_800.0, "problem"),
        (HOUR_MS, 2 * 3600.0, "problem"),
        (60 * DAY_MS, 0.0, "warning"),
    ],
)
def test_a_delay_is_as_urgent_as_the_log_is_short(
    behind_ms: int, kept_s: float, severity: str
) -> None:
    found = advice(state="retrying", behind_ms=behind_ms, kept_s=kept_s, error="503")
    assert found == [(severity, "is behind", "foldmq outbox show erp")]


def test_each_trouble_has_its_next_command() -> None:
    assert advice(state="away")[0][:2] == ("problem", "gets no messages")
    wrong = advice(state="misconfigured", error="401 Unauthorized")
    assert wrong == [("problem", "takes no messages with these settings", "foldmq outbox show erp")]
    assert advice(state="paused", name="my-erp") == [
        ("notice", "is paused", "foldmq outbox resume my-erp")
    ]
    assert advice(refused=3) == [("warning", "refused messages", "foldmq outbox refused erp")]
    lost = ("problem", "has lost messages", "foldmq log --type ForwardLost")
    assert advice(losses=1) == [lost]


def test_the_next_command_runs_as_pasted() -> None:
    commands = NextCommands(SourceFlags({"data_dir": "d"}))
    for _, _, command in advice(state="paused", refused=3):
        assert commands.complete(command).endswith(" erp --data-dir d")
    assert "resume --data-dir d erp" in commands.in_text("Then run foldmq outbox resume erp.")


@pytest.mark.parametrize("several", [False, True])
def test_a_salvage_is_proposed_for_a_directory_with_one_log(
    *, several: bool, tmp_path: Path
) -> None:
    if several:
        (tmp_path / "processes").write_text("2\n")
    line = NextCommands(SourceFlags({"data_dir": tmp_path})).in_text(str(CorruptLog(9, "is bad")))
    assert line.endswith("; restore a backup") == several
    assert ("salvage --data-dir" in line) == (not several)


def test_one_line_for_all_destinations() -> None:
    rows = [ROW, {**ROW, "state": "retrying", "behind_ms": 2 * HOUR_MS}, ROW]
    assert destinations_text(rows) == "2 sending, 1 retrying, at most 2 h behind"


@pytest.mark.parametrize("width", [80, 200])
def test_top_has_a_line_for_the_destinations_with_problems(width: int) -> None:
    rows = [
        {**ROW, "name": "well"},
        {**ROW, "name": "idle", "state": "paused"},
        {**ROW, "name": "late", "behind_ms": HOUR_MS, "refused": 7, "losses": 3},
        {**ROW, "name": "away", "state": "away", "behind_ms": DAY_MS},
    ]
    frame = Frame({**status(), "destinations": rows}, None, History())
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(top_summary(frame, width))
    text = console.export_text()
    lines = [line for line in text.splitlines() if "refused" in line]
    names = [next(name for name in NAMES if name in line) for line in lines]
    assert names == ["away", "idle", "late"]
    assert "outbox" in lines[0]
    assert "behind 1 h" in lines[2]
    assert "refused 7" in lines[2]
    assert "lost 3" in lines[2]
    console.print(top_summary(Frame(status(), None, History()), width))
    assert "outbox" not in console.export_text()
