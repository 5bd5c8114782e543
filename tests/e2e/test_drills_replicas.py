"""A cluster of three NATS servers, one of which is killed, stopped, suspended or cut off.

No acknowledged message may be lost, clients stay connected, and afterwards the three replicas are
equal, each read completely from its own store. `make test` kills the leading server; `make drills`
applies every fault to leaders and others, with more strikes.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.nats import ACCESS
from harness.natscluster import Member, NatsCluster
from harness.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300 + 60 * ROUNDS)]

FAULTS = ("kill", "stop", "suspend", "cut")
ROLES = ("leader", "connected", "other")
"""The server that leads the stream, the one that the broker is connected to, one that does not
lead."""
QUICK = ("kill", "leader")
IN_DRILLS = pytest.mark.skipif(
    ROUNDS < 3, reason="one fault is enough for make test; make drills has all"
)
LONGER = 4.0
"""Seconds for which a server stays away at most when messages are acknowledged again."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path / "nats") as made:
        yield made


def on_cluster(make_broker: Callable[..., Broker], cluster: NatsCluster) -> Broker:
    return make_broker(f"{ACCESS}nats_url = '{cluster.url}'\nbridge = false\n")


def stream_of(broker: Broker) -> str:
    return f"FOLDMQ_LOG_{(broker.data_dir / 'node').read_text().strip()}"


def take_away(cluster: NatsCluster, victim: Member, fault: str) -> None:
    if fault == "kill":
        victim.kill()
    elif fault == "stop":
        victim.stop()
    elif fault == "suspend":
        victim.suspend()
    else:
        cluster.cut_off(victim)


def bring_back(cluster: NatsCluster, victim: Member, fault: str) -> None:
    if fault in ("kill", "stop"):
        victim.start()
    elif fault == "suspend":
        victim.resume()
    else:
        cluster.rejoin(victim)
    cluster.wait_until_healthy()


def strike(drill: Drill, cluster: NatsCluster, fault: str, role: str) -> None:
    """Takes one server away until messages are acknowledged again, and a while longer."""
    leader = cluster.leader(stream_of(drill.broker))
    victim = {
        "leader": leader,
        "connected": cluster.connected("foldmq"),
        "other": drill.random.choice([one for one in cluster.members if one is not leader]),
    }[role]
    before = drill.account.totals()["acknowledged"]
    begun = time.monotonic()
    take_away(cluster, victim, fault)
    # What was stored just before may still be acknowledged.
    until(lambda: drill.account.totals()["acknowledged"] > before + 100, "acknowledgements")
    drill.notes.append(f"{fault} {victim.name}, {role}: {time.monotonic() - begun:.1f} s")
    time.sleep(drill.random.uniform(0, LONGER))
    bring_back(cluster, victim, fault)


@pytest.mark.parametrize(
    ("fault", "role"),
    [
        pytest.param(*one, marks=[] if one == QUICK else IN_DRILLS, id="-".join(one))
        for one in itertools.product(FAULTS, ROLES)
    ],
)
def test_one_server_is_away(
    make_broker: Callable[..., Broker], cluster: NatsCluster, fault: str, role: str
) -> None:
    broker = on_cluster(make_broker, cluster)
    broker.start()
    assert "3 replicas: n" in broker.log
    drill = Drill(broker, SEED)
    drill.start()
    for _ in range(1 if (fault, role) == QUICK and ROUNDS < 3 else FEW):
        drill.strike(lambda: strike(drill, cluster, fault, role))
    drill.judge()
    broker.stop()
    assert cluster.check_replicas(stream_of(broker)) > 50, "hardly any records"


@IN_DRILLS
def test_every_server_is_restarted_in_turn(
    make_broker: Callable[..., Broker], cluster: NatsCluster
) -> None:
    """A rolling upgrade, and the broker itself is killed while a server is away."""
    broker = on_cluster(make_broker, cluster)
    broker.start()
    drill = Drill(broker, SEED)
    drill.start()

    def restart(member: Member, *, kill: bool) -> None:
        member.stop()
        if kill:
            broker.restart(kill=True)
        bring_back(cluster, member, "stop")

    for number in range(FEW):
        for member in cluster.members:
            kill = member is cluster.members[number % 3]
            drill.strike(lambda member=member, kill=kill: restart(member, kill=kill))  # type: ignore[misc]
    drill.judge()
    broker.stop()
    assert cluster.check_replicas(stream_of(broker)) > 50, "hardly any records"
