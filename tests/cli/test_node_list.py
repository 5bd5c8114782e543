"""What ``foldmq nodes`` and ``foldmq nodes move`` want to know of the cluster."""

import pytest

from cli.commands.node_list import cluster_access, rows
from cli.logs.source_flags import SourceFlags
from cli.settings.setting_sources import ConfigError
from cluster.status import NodeStatus, Role
from eventstore.errors import UsageError

_HERE = SourceFlags({"nats_url": "nats://127.0.0.1:1"})


@pytest.mark.parametrize("name", ["*", "a.b", "a b", ">", "x" * 33])
def test_a_name_that_no_cluster_can_have(name: str) -> None:
    """As a part of a subject it would ask other clusters, or none."""
    with pytest.raises(ConfigError, match="must be a name of letters, digits, - and _"):
        cluster_access(_HERE, name)


def test_the_clock_of_a_node_is_compared_with_the_time_of_the_question() -> None:
    status = NodeStatus(
        node="n", role=Role.LEADING, epoch=1, sequence=3, link="", time_ms=5_000, host="h", pid=1,
        version="1", users="", permissions="",
    )  # fmt: skip
    (row,) = rows([status], asked_ms=4_000)
    assert (row["clock_off_ms"], row["behind"]) == (1_000, 0)


def test_a_cluster_and_its_server_are_needed() -> None:
    name, access = cluster_access(_HERE, "plant")
    assert (name, access.urls) == ("plant", ("nats://127.0.0.1:1",))
    for flags, cluster in ((_HERE, None), (SourceFlags(), "plant")):
        with pytest.raises(UsageError, match="give the cluster and its NATS server"):
            cluster_access(flags, cluster)
