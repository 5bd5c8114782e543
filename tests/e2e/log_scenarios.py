"""Traffic for a broker whose log is then read, and the events that it causes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Pubrec, Pubrel, Will

from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, run

FEW_QUEUED = "max_queued_messages = 3\nack_wait = 0\n"
"""Two messages are never answered: on a slow machine they would be sent again meanwhile."""


def play(clients: Clients) -> None:
    """The traffic that the tests know; afterwards `screen` and `sensor` are still connected.

    `archive` is away with a full queue of three, `screen` has not answered two messages.
    """
    archive = clients.connect("archive", clean=False)
    archive.subscribe(("hall/#", 2))
    archive.disconnect()
    screen = clients.connect("screen", clean=False)
    screen.subscribe(("hall/+", 2), ("lamp", 0))
    sensor = clients.connect("sensor", will=Will("wills/sensor", b"gone", 1))
    sensor.publish("hall/door", b"open", 1)
    screen.acknowledge(screen.expect_publish("hall/door", b"open", 1))
    sensor.publish("hall/window", b"shut", 2)
    screen.acknowledge(screen.expect_publish("hall/window", b"shut", 2))
    sensor.publish("hall/door", b"ajar", 1)
    screen.expect_publish("hall/door", b"ajar", 1)
    sensor.publish("hall/door", b"fourth", 2)
    got = screen.expect_publish("hall/door", b"fourth", 2)
    screen.send(p.pubrec(got.packet_id or 0))
    screen.expect(Pubrel(got.packet_id or 0))
    sensor.publish("lamp", b"on", 1, retain=True)
    screen.expect_publish("lamp", b"on", 0)
    sensor.send(p.publish("hall/door", b"unreleased", 2, 77))
    sensor.expect(Pubrec(77))
    evil = clients.connect(HOSTILE_ID)
    evil.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1, retain=True)
    screen.expect_alive()
    evil.disconnect()


def events(data: tuple[str, str], *arguments: str) -> list[dict[str, Any]]:
    return run("log", *data, "--json", *arguments).objects


@contextlib.contextmanager
def serving(
    directory: Path,
    *args: str,
    play: Callable[[Clients], object] = play,
    config: str = FEW_QUEUED,
) -> Iterator[tuple[Broker, Clients]]:
    """A broker with the traffic that tests know, and the clients, which are still connected."""
    with (
        Broker(directory, args=args, config=config, forked=True) as broker,
        contextlib.closing(Clients("127.0.0.1", broker.port)) as clients,
    ):
        play(clients)
        yield broker, clients
