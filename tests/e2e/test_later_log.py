"""The log of a later foldmq: refused with one line, and not changed."""

from pathlib import Path
from typing import Any

import pytest
from harness.logs import LogBuilder
from harness.nats import ACCESS, Nats

from e2e.tools import refused, run
from eventstore.format.events import MessagePublished, SessionOpened
from eventstore.format.node_events import BrokerStarted

COMMANDS = (
    ("log",),
    ("log", "verify"),
    ("log", "usage"),
    ("replay",),
    ("replay", "--session", "c"),
    ("replay", "--topic", "#"),
    ("diff", "1", "3"),
    ("why", "--topic", "t"),
)
"""All commands that read the whole log."""


def stored(server: Nats, log: LogBuilder) -> tuple[Any, ...]:
    info = server.api(f"STREAM.INFO.{log.stream}")
    last = server.api(f"STREAM.MSG.GET.{log.stream}", {"seq": log.last})["message"]["data"]
    return info["config"], info["state"], last


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (b"FMQ\x03" + bytes(200), "record 3 of the log has format 3"),
        ({"e": "Teleported", "v": 1}, "record 3, entry 0: event 'Teleported' version 1 is not"),
        pytest.param(
            {"e": "MessagePublished", "v": 2, "session": "c"},
            "event 'MessagePublished' version 2",
            marks=pytest.mark.long,
        ),
    ],
)
def test_it_is_refused_by_all_commands(
    external: Nats, tmp_path: Path, later: bytes | dict[str, Any], what: str
) -> None:
    log = LogBuilder()
    log.record(BrokerStarted("1"))
    log.record(
        SessionOpened("c", resumed=False, clean=False, level=4),
        MessagePublished("c", 1, True, ["t"], [], [1], 2, 0, 1),
        payloads=[b"hi"],
    )
    if isinstance(later, bytes):
        log.raw(later)
    else:
        log.record(later)
    log.store(external)
    before = stored(external, log)
    config = tmp_path / "foldmq.toml"
    config.write_text(ACCESS)
    where = ("--nats-url", external.url, "--config", str(config))
    for command in COMMANDS:
        line = refused(*command, *where, code=78)
        assert what in line
        assert "later one" in line
    # What is before it can be read.
    assert len(run("log", "--to", "2", *where).lines) == 3
    assert stored(external, log) == before
