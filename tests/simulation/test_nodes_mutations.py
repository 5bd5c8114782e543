"""The checks of several nodes can fail: a cluster that breaks a rule is caught."""

from collections.abc import Callable

import pytest

from actors.session.node_context import NodeContext
from cluster.edge_client import EdgeClient
from eventstore.log.jetstream_log import Appended, EventLog
from eventstore.log.record_reader import LogTail
from simulation import chaos
from simulation.broken_clusters import (
    Patch,
    follows_without_folding_every_record,
    writes_on_although_another_node_leads,
)
from simulation.chaos import run
from simulation.nodes import NodesWorld

pytestmark = pytest.mark.plain

SEEDS = (4, 11, 60, 0, 50, 183, 3, 5, 10, 2, 7, *range(61, 80))
LONGEST = 800.0
"""Seconds of virtual time after which a mutant's run does not end."""


def takes_over_wherever_the_log_ends(patch: Patch) -> None:
    async def anywhere(log: EventLog, _tail: LogTail, data: bytes) -> Appended:
        try:
            await log._nc.request(log._subject, data, timeout=2.0)
        except Exception:  # noqa: BLE001 - whatever it is, the log is not its own
            return Appended.UNKNOWN
        return Appended.STORED

    patch.setattr(EventLog, "append_behind", anywhere)


def drops_bytes_for_clients_that_read_slowly(patch: Patch) -> None:
    take = EdgeClient.take

    def drop(client: EdgeClient, data: bytes) -> None:
        if not client.unread:
            take(client, data)

    patch.setattr(EdgeClient, "take", drop)


def closes_a_client_before_its_disconnect_is_passed_on(patch: Patch) -> None:
    received = EdgeClient.data_received

    def receive(client: EdgeClient, data: bytes) -> None:
        if data[:1] == b"\xe0":
            client.close()
        else:
            received(client, data)

    patch.setattr(EdgeClient, "data_received", receive)


def publishes_wills_before_their_time(patch: Patch) -> None:
    patch.setattr(NodeContext, "will_due_in", lambda _node, state: 0.0 if state.will else 1e9)


@pytest.mark.parametrize(
    "mutant",
    [
        follows_without_folding_every_record,
        writes_on_although_another_node_leads,
        takes_over_wherever_the_log_ends,
        pytest.param(drops_bytes_for_clients_that_read_slowly, marks=pytest.mark.long),
        closes_a_client_before_its_disconnect_is_passed_on,
        pytest.param(publishes_wills_before_their_time, marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_a_cluster_that_violates_a_rule_is_detected(mutant: Callable[[Patch], None]) -> None:
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chaos, "_LONGEST", LONGEST)
            mutant(patch)
            try:
                run(seed, NodesWorld)
            except Exception as error:  # noqa: BLE001 - any shows that something is wrong
                print(f"caught by seed {seed}: {str(error)[:500]}")
                return
    pytest.fail(f"the cluster that {mutant.__name__} passes the seeds {SEEDS}")
