"""The logs that a command reads: one or several, some of which may be absent or fail."""

import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from freezegun import freeze_time

from cli.commands import verify_log, verify_state
from cli.common import logging_setup
from cli.logs.logs import IncompleteLogs, Logs
from eventstore.errors import CorruptLog, CutMeanwhile, NatsUnavailable, NoLog, NotFound
from protocol.errors import FoldmqError

HOSTILE = "a\x1b[2J\x07\n2026-01-01 forged\r\x9b1m\x7f\u202e\u2028\x00z"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield io.StringIO()
    structlog.reset_defaults()
    logging.basicConfig(handlers=[], force=True)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


@freeze_time("2026-01-31 12:00:00")
def test_text_line(stream: io.StringIO) -> None:
    logging_setup.configure("info", "text", stream)
    structlog.get_logger("foldmq").info(
        "client connected", client="a1", topic="a/+ b", clean=True, will=None, payload=b"x\xff"
    )
    assert stream.getvalue() == (
        "2026-01-31T12:00:00.000Z info    client connected client=a1 "
        'topic="a/+ b" clean=true will=null payload="x\\\\xff"\n'
    )


@freeze_time("2026-01-31 12:00:00")
def test_json_line(stream: io.StringIO) -> None:
    logging_setup.configure("info", "json", stream)
    structlog.get_logger("foldmq").warning("client refused", client="ä", code=4, payload=b"x")
    assert json.loads(stream.getvalue()) == {
        "timestamp": "2026-01-31T12:00:00.000000Z",
        "level": "warning",
        "event": "client refused",
        "client": "ä",
        "code": 4,
        "payload": "x",
    }


@pytest.mark.parametrize("format_", ["text", "json"])
def test_control_characters_are_escaped(stream: io.StringIO, format_: logging_setup.Format) -> None:
    logging_setup.configure("info", format_, stream)
    log = structlog.get_logger("foldmq")
    log.info("client connected", client=HOSTILE, raw=HOSTILE.encode())
    log.info(HOSTILE)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert all(line.isprintable() for line in written.split("\n"))
    assert "\\u001b[2J" in written


def test_json_gives_back_what_was_escaped(stream: io.StringIO) -> None:
    logging_setup.configure("info", "json", stream)
    structlog.get_logger("foldmq").info("client connected", client=HOSTILE)
    assert json.loads(stream.getvalue())["client"] == HOSTILE


def test_levels_filter_and_change_for_loggers_in_use(stream: io.StringIO) -> None:
    logging_setup.configure("warning", "text", stream)
    log = structlog.get_logger("foldmq")
    log.debug("one")
    log.info("two")
    log.warning("three")
    logging_setup.set_level("debug")
    log.debug("four")
    logging_setup.set_level("error")
    log.warning("five")
    log.error("six")
    assert [line.split()[2] for line in lines(stream)] == ["three", "four", "six"]


def test_bound_values_are_kept(stream: io.StringIO) -> None:
    logging_setup.configure("info", "json", stream)
    structlog.get_logger("foldmq").bind(client="a").info("client connected", qos=1)
    written = json.loads(stream.getvalue())
    assert (written["client"], written["qos"]) == ("a", 1)


def test_exception_in_text_is_indented_and_escaped(stream: io.StringIO) -> None:
    logging_setup.configure("info", "text", stream)
    try:
        int(HOSTILE)
    except ValueError:
        structlog.get_logger("foldmq").exception("actor failed", actor="session")
    first, *rest = lines(stream)
    assert "error   actor failed actor=session" in first
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert "forged" in stream.getvalue()


def test_exception_in_json_is_a_value(stream: io.StringIO) -> None:
    logging_setup.configure("info", "json", stream)
    structlog.get_logger("foldmq").error("actor failed", exc_info=ValueError("lost"))
    assert json.loads(stream.getvalue())["exception"] == "ValueError: lost"


def test_libraries_log_into_the_same_output(stream: io.StringIO) -> None:
    logging_setup.configure("info", "json", stream)
    logging.getLogger("aiohttp.server").warning("slow %s", "consumer")
    logging.getLogger("asyncio").info("not shown")
    (line,) = lines(stream)
    written = json.loads(line)
    assert (written["event"], written["level"]) == ("slow consumer", "warning")
    assert written["logger"] == "aiohttp.server"


def test_a_reader_that_went_away_does_not_stop_the_broker() -> None:
    stream = io.StringIO()
    logging_setup.configure("info", "text", stream)
    stream.close()
    structlog.get_logger("foldmq").info("still here")
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        logging_setup.configure("info", "text", stream)
        structlog.get_logger("foldmq").info("ready")
        assert ("\x1b[" in stream.getvalue()) is coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    logging_setup.configure("info", "text", plain)
    structlog.get_logger("foldmq").info("ready")
    assert "\x1b[" not in plain.getvalue()
    structlog.reset_defaults()


@pytest.mark.parametrize("format_", ["text", "json"])
def test_values_longer_than_anybody_reads_are_cut(
    stream: io.StringIO, format_: logging_setup.Format
) -> None:
    logging_setup.configure("info", format_, stream)
    structlog.get_logger("foldmq").info("client connected", client="x" * 60_000)
    assert len(stream.getvalue()) < 1200
    assert "(60000 characters)" in stream.getvalue()


FLAGS: Any = None


@contextlib.asynccontextmanager
async def two_logs(*_flags: object, **_more: object) -> AsyncIterator[Logs]:
    logs = Logs(["n-p0", "n-p1"])
    logs.update({"n-p0": "first", "n-p1": "second"})  # type: ignore[dict-item]
    yield logs


def test_verify_compares_the_other_logs_when_one_is_cut_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    async def outcome(_self: object, source: str) -> SimpleNamespace:
        compared.append(source)
        if source == "first":
            raise CutMeanwhile(3)
        return SimpleNamespace(equal=True)

    monkeypatch.setattr(verify_state, "open_logs", two_logs)
    monkeypatch.setattr(verify_state._Verification, "_outcome", outcome)
    monkeypatch.setattr(verify_state._Verification, "_print", lambda *_: None)
    with pytest.raises(IncompleteLogs, match="without 1 of 2 logs: log n-p0"):
        verify_state.run_verify_state(FLAGS, None, stored=False, as_json=False)
    assert compared.count("second") == 1
    assert compared.count("first") == 1 + verify_state._TRIES


def test_a_log_whose_exchange_cannot_be_checked_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def verified(*_log: object, **_more: object) -> verify_log._Verified:
        return verify_log._Verified(SimpleNamespace(records=1, entries=1), intact=True)  # type: ignore[arg-type]

    async def exchange(log: str, *_more: object, **_json: object) -> bool:
        if log == "n-p0":
            raise NatsUnavailable("no answer")
        return True

    monkeypatch.setattr(verify_log, "open_logs", two_logs)
    monkeypatch.setattr(verify_log, "_verify", verified)
    monkeypatch.setattr(verify_log, "_verify_exchange", exchange)
    with pytest.raises(IncompleteLogs, match="without 1 of 2 logs: log n-p0: no answer"):
        verify_log.run_verify_log(FLAGS)


DAMAGED, MISSING, AWAY = CorruptLog(7, "has a wrong checksum"), NoLog("none"), NatsUnavailable("no")


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([AWAY, DAMAGED, MISSING], 65),
        ([AWAY, MISSING], 66),
        ([CutMeanwhile(3), AWAY], 69),
        ([NotFound("no"), CutMeanwhile(3)], 75),
    ],
)
def test_the_exit_code_is_that_of_the_worst_error(errors: list[FoldmqError], code: int) -> None:
    logs = Logs([f"n-p{number}" for number in range(4)])
    for number, error in enumerate(errors):
        logs.errors[f"n-p{number}"] = error
    with pytest.raises(
        IncompleteLogs, match=f"incomplete, without {len(errors)} of 4 logs"
    ) as found:
        logs.check_read()
    assert found.value.exit_code == code
    del logs.names[len(errors) :]
    with pytest.raises(type(min(errors, key=lambda one: one.exit_code != code))):
        logs.check_read()


def fail() -> None:
    raise NoLog("there is none")


def test_an_error_names_its_log_once() -> None:
    logs = Logs(["n-p0", "n-p1"])
    logs.check_read()
    with logs.of("n-p1"):
        fail()
    with pytest.raises(IncompleteLogs) as found:
        logs.check_read()
    assert str(found.value) == "incomplete, without 1 of 2 logs: log n-p1: there is none"
    logs.names.remove("n-p0")
    with pytest.raises(NoLog, match=r"^log n-p1: there is none$"):
        logs.check_read()


def test_the_error_of_a_single_log_is_raised_as_it_is() -> None:
    logs = Logs([""])
    with pytest.raises(NoLog, match=r"^there is none$"), logs.of(""):
        fail()
    assert logs.errors == {}
