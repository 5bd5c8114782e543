"""kill -9 and SIGSTOP under load: whatever was acknowledged must be there afterwards.

FOLDMQ_DRILL_ROUNDS (default 2) is the number of strikes per drill, FOLDMQ_DRILL_SEED the seed of
the moments and the load. Each drill tells its seed when it fails.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from harness.broker import stand_still
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.rebuilt import check_recovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.broker import Broker

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400 + 40 * ROUNDS)]


def strike(drill: Drill, victim: str) -> None:
    """Kills, and brings back whatever does not come back by itself."""
    broker = drill.broker
    if victim == "broker":
        broker.restart(kill=True)
    elif victim == "nats":
        broker.kill_nats()
    elif victim == "both":
        broker.kill_nats()
        time.sleep(drill.random.uniform(0, 0.05))
        broker.restart(kill=True)
    else:
        broker.restart()


def stop_for_a_while(drill: Drill, victim: str) -> None:
    """SIGSTOP for seconds; half of the times for NATS so long that the broker asks what is up."""
    pid = drill.broker.pid if victim == "broker" else drill.broker.nats_pid
    longest = 3.0 if victim == "broker" else drill.random.choice((1.0, 7.0))
    stand_still(pid)
    time.sleep(drill.random.uniform(longest * 0.8, longest))
    os.kill(pid, signal.SIGCONT)


@pytest.mark.mqtt(
    "MQTT-4.1.0-1", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.4.0-1", "MQTT-4.6.0-6"
)
@pytest.mark.parametrize("victim", ["broker", "nats", "both", "restart"])
def test_nothing_acknowledged_is_lost(
    make_broker: Callable[..., Broker], victim: str, request: pytest.FixtureRequest
) -> None:
    """Where the broker was killed, Spark proves the same from its log alone."""
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(ROUNDS):
        drill.strike(lambda: strike(drill, victim))
    drill.judge()
    if victim in ("broker", "both"):
        outcome = check_recovered(broker, request.getfixturevalue("spark"))
        assert all(node.start is not None and node.start.crashed for node in outcome.nodes)
        assert outcome.nodes[0].resumed, "no client came back"
    broker.stop()


@pytest.mark.parametrize("victim", ["broker", "nats"])
def test_stopped_for_seconds(make_broker: Callable[..., Broker], victim: str) -> None:
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(FEW):
        drill.strike(lambda: stop_for_a_while(drill, victim))
    drill.judge()
    broker.stop()


def test_weaker_mode_loses_nothing_in_a_crash_of_the_programs(
    make_broker: Callable[..., Broker],
) -> None:
    """What it has written is in the page cache."""
    broker = make_broker("", "--sync", "60")
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(FEW):
        drill.strike(lambda: strike(drill, "both"))
    drill.judge()
    broker.stop()
