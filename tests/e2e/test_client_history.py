"""The history of clients and of the broker: drops, denials, reconnects, takeovers, ends."""

from collections.abc import Callable
from typing import Any

from harness.broker import Broker
from harness.fixtures import Clients

from e2e.tools import run


def row_of(broker: Broker, client: str) -> dict[str, Any]:
    data = ("--data-dir", str(broker.data_dir))
    (found,) = run("sessions", "ls", "--match", client, "--json", *data).objects
    return dict(found)


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
