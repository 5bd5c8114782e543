"""kill -9 under load: everything acknowledged must be present afterwards.

FOLDMQ_DRILL_ROUNDS (default 1) is the number of strikes per drill, FOLDMQ_DRILL_SEED the seed of
the moments and the load. Each drill reports its seed when it fails.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.drill import ROUNDS, SEED, Drill, strike_at
from harness.rebuilt import check_recovered

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400 + 40 * ROUNDS)]


@pytest.mark.mqtt(
    "MQTT-4.1.0-1", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.4.0-1", "MQTT-4.6.0-6"
)
@pytest.mark.parametrize(
    "victim", [pytest.param("broker", marks=pytest.mark.long), "nats", "both", "restart"]
)
def test_nothing_acknowledged_is_lost(
    make_broker: Callable[..., Broker], victim: str, request: pytest.FixtureRequest
) -> None:
    """In `make drills`, Spark proves the same from the log alone (else
    tests/spark/test_audit_broker.py)."""
    broker = make_broker()
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(ROUNDS):
        drill.strike(lambda: strike_at(drill, victim))
    drill.judge()
    if victim in ("both", "broker") and ROUNDS > 2:
        outcome = check_recovered(broker, request.getfixturevalue("spark"))
        assert all(node.start is not None and node.start.crashed for node in outcome.nodes)
        assert outcome.nodes[0].resumed, "no client came back"
    broker.stop()


@pytest.mark.parametrize("victim", [pytest.param("nats", marks=pytest.mark.long), "both"])
def test_nothing_acknowledged_is_lost_of_an_encrypted_log(
    make_broker: Callable[..., Broker], tmp_path: Path, victim: str
) -> None:
    (tmp_path / "key").write_text("k" * 64)
    (tmp_path / "key").chmod(0o600)
    broker = make_broker("", "--encryption-key-file", str(tmp_path / "key"))
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(ROUNDS):
        drill.strike(lambda: strike_at(drill, victim))
    drill.judge()
    broker.stop()
