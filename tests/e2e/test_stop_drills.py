"""SIGSTOP under load, and crashes in the weaker mode: nothing acknowledged is lost.

The same as ``test_crash_drills``, without Spark.
"""

import os
import signal
import time
from collections.abc import Callable

import pytest
from harness.broker import Broker, stand_still
from harness.drill import FEW, ROUNDS, SEED, Drill, strike_at

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400 + 40 * ROUNDS)]


def stop_for_a_while(drill: Drill, victim: str) -> None:
    """SIGSTOP for seconds; half of the times for NATS so long that the broker asks what is up."""
    pid = drill.broker.pid if victim == "broker" else drill.broker.nats_pid
    longest = 3.0 if victim == "broker" else drill.random.choice((1.0, 7.0))
    stand_still(pid)
    time.sleep(drill.random.uniform(longest * 0.8, longest))
    os.kill(pid, signal.SIGCONT)


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
        drill.strike(lambda: strike_at(drill, "both"))
    drill.judge()
    broker.stop()
