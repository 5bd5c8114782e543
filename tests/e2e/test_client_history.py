"""The history of clients and of the broker: drops, denials, reconnects, takeovers, ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.broker import Broker
from harness.fixtures import Clients

from e2e.tools import run
from projections.log_proof import REACHED

RULES = """
[[allow]]
anonymous = true
both = ["#"]

[[deny]]
anonymous = true
publish = ["plant/locked"]
subscribe = ["plant/closed"]
"""

DENIED = "the permissions do not let the client publish to this topic (permissions)"
CRASHED = f"the previous run crashed or was killed; {REACHED}"


def row_of(broker: Broker, client: str) -> dict[str, Any]:
    data = ("--data-dir", str(broker.data_dir))
    (found,) = run("sessions", "ls", "--match", client, "--json", *data).objects
    return dict(found)


def test_sessions_show_the_history_of_their_clients(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    rules = tmp_path / "permissions.toml"
    rules.write_text(RULES)
    broker = make_broker(
        f'max_queued_messages = 1\npermissions = "{rules}"\nallow_anonymous = true\n'
    )
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    reader, writer = clients.connect("reader", clean=False), clients.connect("writer")
    reader.subscribe(("hall/#", 1))
    reader.disconnect()
    for number in range(3):
        writer.publish("hall/door", b"%d" % number, 1)
    row = row_of(broker, "reader")
    assert (row["connects"], row["takeovers"], row["last_close"]) == (1, 0, "disconnect")
    assert (row["dropped"], row["dropped_by"]) == (2, {"queue_messages": 2})
    clients.connect("reader", clean=False, session_present=True)
    clients.connect("reader", clean=False, session_present=True)
    row = row_of(broker, "reader")
    assert (row["connects"], row["takeovers"], row["last_close"]) == (3, 1, "taken_over")
    assert row["rate_in"] == 0
    writer.publish("plant/locked", b"secret", 1)
    row = row_of(broker, "writer")
    assert (row["dropped_by"], row["denied"]) == ({"not_permitted": 1}, 1)
    data = ("--data-dir", str(broker.data_dir))
    lines = run("sessions", "show", "writer", *data).lines
    assert '  denied: 1 ("publish plant/locked")' in lines
    lines = run("sessions", "show", "reader", *data).lines
    assert any(": 3 connects, 1 takeover, last end " in line for line in lines)
    (event,) = run("log", "--type", "MessageDropped", "--session", "writer", *data).lines
    assert event.endswith(f"dropped 1 message to plant/locked: {DENIED}")
    (event,) = run(
        "log", "--type", "MessageDropped", "--session", "writer", "--json", *data
    ).objects
    assert (event["topics"], event["reason"]) == (["plant/locked"], "not_permitted")
    assert run("log", "--topic", "plant/+", "--json", *data).objects == [event]
    clients.close()


def test_counters_continue_after_a_crash(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("max_queued_messages = 1\n")
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    reader, writer = clients.connect("reader", clean=False), clients.connect("writer", clean=False)
    reader.subscribe(("hall/#", 1))
    reader.disconnect()
    for number in range(3):
        writer.publish("hall/door", b"%d" % number, 1)
    clients.connect("reader", clean=False, session_present=True).disconnect()
    before, compared = row_of(broker, "reader"), ("dropped_by", "takeovers", "counted_since_at")
    broker.restart(kill=True)
    after = row_of(broker, "reader")
    assert [after[one] for one in compared] == [before[one] for one in compared]
    assert (after["connects"], after["dropped"], after["last_close"]) == (2, 2, "disconnect")
    assert row_of(broker, "writer")["last_close"] == "broker_restarted"
    data = ("--data-dir", str(broker.data_dir))
    assert "equal: " in run("verify", "--stored", *data).out
    clients.close()


def test_a_start_after_a_crash_is_reported(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker('log_format = "json"\n')
    broker.start()
    broker.restart()
    assert not broker.told(CRASHED)
    broker.restart(kill=True)
    (line,) = broker.told(CRASHED)
    assert line["last_record"] > 0
    data = ("--data-dir", str(broker.data_dir))
    starts = run("log", "--type", "BrokerStarted", "--json", *data).objects
    assert [one.get("crashed", False) for one in starts] == [False, False, True]
    assert (
        "broker started after a crash, foldmq "
        in run("log", "--type", "BrokerStarted", "-n", "1", *data).out
    )


def test_a_retained_message_has_its_publisher_and_time(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("pump-7").publish("plant/state", b"on", 1, retain=True)
    data = ("--data-dir", str(broker.data_dir))
    (found,) = run("retained", "ls", "--json", *data).objects
    (event,) = run("log", "--type", "MessagePublished", "--json", *data).objects
    assert found["set_by"] == "pump-7"
    assert found["set_at"] is not None
    assert event["session"] == "pump-7"
    assert "  pump-7  " in run("retained", "ls", *data).lines[1]
    clients.close()
