"""Log lines: text and JSON, and client input that cannot break out of its value."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from freezegun import freeze_time

from cli.common import logging_setup

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
