"""kill -9 under load: whatever was acknowledged must be there afterwards.

FOLDMQ_DRILL_ROUNDS (default 2) is the number of kills per drill, FOLDMQ_DRILL_SEED the seed of
the moments and the load. Each drill prints its seed when it fails.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from harness.account import Account
from harness.drill import Mortal, Publisher, Subscriber, check_retained

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.broker import Broker

ROUNDS = int(os.environ.get("FOLDMQ_DRILL_ROUNDS", "2"))
SEED = int(os.environ.get("FOLDMQ_DRILL_SEED", "1"))
SETTLE = 40.0
"""Seconds within which all clients must be done and all messages must have arrived."""


class Drill:
    """One broker, its clients and their account."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.account = Account()
        self.random = random.Random(seed)
        self.crashes = 0
        """Odd while something is being killed."""
        port = broker.port
        account = self.account
        flapping = random.Random(seed + 1)
        self.subscribers = [
            Subscriber(account, port, "online2", "data/", 2),
            Subscriber(account, port, "online1", "data/", 1),
            Subscriber(account, port, "online0", "data/", 0),
            Subscriber(account, port, "flapping", "data/", 2, flapping=flapping),
            Subscriber(account, port, "retained", "retained/", 2),
            Subscriber(account, port, "wills", "will/", 1),
        ]
        self.absent = Subscriber(account, port, "absent", "data/", 2)
        self.publishers = [
            Publisher(account, port, f"pub{n}", [f"data/{n}/a", "data/both"], seed=seed + 10 + n)
            for n in range(3)
        ]
        names = [f"retained/{n}" for n in range(5)]
        self.publishers.append(
            Publisher(account, port, "keeper", names, seed=seed + 20, window=1, retain=True)
        )
        self.mortals = [
            Mortal(account, port, f"mortal{n}", seed=seed + 30 + n, crashes=lambda: self.crashes)
            for n in range(2)
        ]

    def start(self) -> None:
        self.absent.subscribe_and_leave()
        for subscriber in self.subscribers:
            subscriber.start()
            assert subscriber.ready.wait(15), f"{subscriber.name} never got its SUBACK"
        for client in [*self.publishers, *self.mortals]:
            client.start()

    def strike(self, victim: str) -> None:
        """Waits for a random moment under load, kills, and brings the broker back."""
        time.sleep(self.random.uniform(0.5, 2.0))
        self.crashes += 1
        if victim == "broker":
            self.broker.restart(kill=True)
        elif victim == "nats":
            self.broker.kill_nats()
        elif victim == "both":
            self.broker.kill_nats()
            time.sleep(self.random.uniform(0, 0.05))
            self.broker.restart(kill=True)
        else:
            self.broker.restart()
        self.crashes += 1
        check_retained(self.account, self.broker.port)

    def settle(self) -> None:
        """Ends the load, lets everything arrive, and ends the clients."""
        time.sleep(self.random.uniform(0.2, 0.8))
        for client in [*self.publishers, *self.mortals]:
            client.finish(SETTLE)
        self.absent.start()
        deadline = time.monotonic() + SETTLE
        while self.account.missing() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        for client in [*self.subscribers, self.absent]:
            client.finish(SETTLE)
        check_retained(self.account, self.broker.port)


@pytest.mark.drill
@pytest.mark.timeout(180 + 40 * ROUNDS)
@pytest.mark.mqtt(
    "MQTT-4.1.0-1", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.4.0-1", "MQTT-4.6.0-6"
)
@pytest.mark.parametrize("victim", ["broker", "nats", "both", "restart"])
def test_nothing_acknowledged_is_lost(make_broker: Callable[..., Broker], victim: str) -> None:
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(ROUNDS):
        drill.strike(victim)
    drill.settle()
    problems = drill.account.problems()
    totals = drill.account.totals()
    assert totals["acknowledged"] > 50, f"hardly any load: {totals}"
    report = "\n".join([f"seed {SEED}: {len(problems)} problems, {totals}", *problems[:40]])
    assert not problems, report
    broker.stop()
