"""The lines of the broker's own log name their client and their event."""

from collections.abc import Callable
from typing import Any

from harness.broker import Broker
from harness.fixtures import Clients
from harness.waiting import until

from e2e.tools import HOSTILE_ID, run

JSON = "log_format = 'json'\n"


def one(broker: Broker, what: str) -> dict[str, Any]:
    until(lambda: broker.told(what), f"a line {what!r}")
    (line,) = broker.told(what)
    return line


def event(broker: Broker, line: dict[str, Any]) -> dict[str, Any]:
    """The event of the log at the position that a line names."""
    place = ("--data-dir", str(broker.data_dir))
    found: dict[str, Any] = run(
        "log", *place, "--from", line["position"], "-n", "1", "--json"
    ).objects[0]
    return found


def test_lines_about_a_client_name_it_and_the_event(
    make_broker: Callable[..., Broker], foldmq_only: None
) -> None:
    own = make_broker(JSON + "log_level = 'debug'\nsession_expiry = '1s'\n")
    own.start()
    clients = Clients("127.0.0.1", own.port)
    first = clients.connect(HOSTILE_ID, clean=False)
    opened = one(own, "connected")
    assert (opened["client"], opened["resumed"]) == (HOSTILE_ID, False)
    assert opened["address"] == "{}:{}".format(*first.socket.getsockname())
    second = clients.connect(HOSTILE_ID, clean=False, session_present=True)
    taken_over = one(own, "session taken over")
    assert (taken_over["client"], taken_over["address"]) == (HOSTILE_ID, opened["address"])
    second.publish("$SYS/x", b"", 1)
    dropped = one(own, "messages dropped")
    assert (dropped["client"], dropped["reason"]) == (HOSTILE_ID, "reserved_topic")
    second.disconnect()
    until(lambda: len(own.told("disconnected")) == 2, "two lines on an end")
    closed = own.told("disconnected")[1]
    assert (closed["client"], closed["reason"]) == (HOSTILE_ID, "disconnect")
    removed = one(own, "session removed")
    assert (removed["client"], removed["reason"]) == (HOSTILE_ID, "expired")
    for line, kind in (
        (opened, "SessionOpened"),
        (taken_over, "SessionTakenOver"),
        (dropped, "MessageDropped"),
        (closed, "SessionClosed"),
        (removed, "SessionExpired"),
    ):
        assert event(own, line)["type"] == kind
    assert "\x1b" not in own.log
    own.stop()


def test_connections_and_messages_are_not_logged_at_the_level_info(
    make_broker: Callable[..., Broker], foldmq_only: None
) -> None:
    own = make_broker(JSON)
    own.start()
    clients = Clients("127.0.0.1", own.port)
    before = len(own.told(""))
    for _ in range(20):
        client = clients.connect()
        client.subscribe(("t", 1))
        client.publish("t", b"x", 0)
        client.expect_publish("t", b"x", 0)
        client.disconnect()
    own.stop()
    lines = own.told("")[before:]
    assert lines, "about its end"
    assert [line for line in lines if "client" in line or "address" in line] == []
