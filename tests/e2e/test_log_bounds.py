"""Sizes beyond the log's bounds: refused at the start, or to the publisher, never later."""

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.nats import Nats
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

from eventstore.format.record_size import STORED_MAX, largest_packet, largest_record

pytestmark = pytest.mark.timeout(180)
MIB = 1 << 20
LISTENER = '[[listen]]\naddress = "127.0.0.1:{}"\nmax_packet_size = "64 MiB"\n'


def largest(max_payload: int = STORED_MAX) -> int:
    return largest_packet(largest_record(max_payload, "foldmq.log.n1"))


@pytest.mark.parametrize("size", [268_435_460, 40 * MIB, STORED_MAX])
def test_packets_that_the_embedded_server_cannot_store(
    make_broker: Callable[..., Broker], size: int
) -> None:
    line = make_broker(f"max_packet_size = {size}\n").refused(78)
    assert line.startswith(f"max_packet_size = {size} exceeds what the log can store: set at most ")
    assert re.search(r"set at most \d+$", line)
    assert 31 * MIB < int(line.split()[-1]) < 32 * MIB


def test_of_one_listener_as_well(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.configure(LISTENER.format(broker.port))
    line = broker.refused(78)
    assert line.startswith(
        f"listen = 127.0.0.1:{broker.port}: max_packet_size = {64 * MIB} exceeds"
    )


@pytest.mark.parametrize("bounded_by", ["server", "stream"])
def test_packets_that_an_external_server_cannot_store(
    external: Nats, on_external: Callable[..., Broker], bounded_by: str
) -> None:
    most = external.max_payload
    if bounded_by == "stream":
        most = 2 * MIB
        stream = {"name": "FOLDMQ_LOG_n1", "subjects": ["foldmq.log.n1"], "allow_direct": True}
        external.api("STREAM.CREATE.FOLDMQ_LOG_n1", {**stream, "max_msg_size": most})
    fitting = largest(most)
    line = on_external(f"max_packet_size = {fitting + 1}\n").refused(78)
    assert f"set at most {fitting}, or raise max_payload of the NATS server" in line
    broker = on_external(f"max_packet_size = {fitting}\n")
    broker.start()
    with RawClient(broker.port) as client:
        client.connect("c", clean=False)
        client.publish("t", bytes(fitting - 100), 1, retain=True)
    broker.stop()


def test_the_largest_packet_is_kept_and_delivered_after_a_restart(
    make_broker: Callable[..., Broker],
) -> None:
    most = largest() - 100  # the node's name is a longer one
    size = most - 100
    broker = make_broker(f"max_packet_size = {most}\n")
    broker.start()
    with RawClient(broker.port) as away:
        away.connect("away", clean=False)
        away.subscribe(("big", 1))
    with RawClient(broker.port) as client:
        client.connect("c")
        client.publish("big", b"x" * size, 1)
        client.publish("small", b"y", 1)
    broker.restart(kill=True)
    with RawClient(broker.port) as away:
        away.connect("away", clean=False)
        assert len(away.expect_a(p.Publish).payload) == size
    broker.stop()


def lower(external: Nats, what: str) -> None:
    """Have NATS take messages of 1 MiB at most, while it runs."""
    if what == "stream":
        config: dict[str, Any] = external.api("STREAM.INFO.FOLDMQ_LOG_n1")["config"]
        external.api("STREAM.UPDATE.FOLDMQ_LOG_n1", {**config, "max_msg_size": MIB})
        return
    file = external.folder / "nats.conf"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_payload": MIB}))
    os.kill(external.pid, signal.SIGHUP)

    async def most(client: Any) -> int:
        return int(client.max_payload)

    until(lambda: external.do(most) == MIB, "the server's new bound")


@pytest.mark.drill
@pytest.mark.parametrize("what", ["stream", "server"])
def test_nats_lowers_its_maximum_payload(
    external: Nats, on_external: Callable[..., Broker], what: str
) -> None:
    """The broker restarts from its log; then only the publisher is closed."""
    broker = on_external()
    broker.start()
    with RawClient(broker.port) as other, RawClient(broker.port) as sender:
        other.connect("other", clean=False)
        sender.connect("sender", clean=False)
        other.publish("t", b"before", 1)
        lower(external, what)
        sender.send(p.publish("t", bytes(MIB + 500_000), 1, 1))
        again = "restarting from the log"
        # A server that ends connections when it rereads its file is noticed at once.
        until(lambda: again in broker.log or "message_too_large" in broker.log, "a reaction")
        assert what == "server" or again in broker.log
        if again in broker.log:
            other.expect_closed()
        else:
            sender.expect_closed()

    def back() -> bool:
        with RawClient(broker.port) as client:
            return client.connect("other", clean=False).code == 0

    until_served(back)
    with RawClient(broker.port) as other, RawClient(broker.port) as sender:
        other.connect("other", clean=False)
        sender.connect("sender", clean=False)
        sender.send(p.publish("t", bytes(MIB + 500_000), 1, 1))
        sender.expect_closed()
        other.publish("t", b"after", 1)
        other.expect_alive()
    assert broker.running
    broker.stop()
    assert "Traceback" not in broker.log


def until_served(asked: Callable[[], bool]) -> None:
    def served() -> bool:
        try:
            return asked()
        except (OSError, ConnectionClosedError):
            return False

    until(served, "service")
