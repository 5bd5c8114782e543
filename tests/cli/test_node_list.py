"""What ``foldmq nodes`` and ``foldmq nodes move`` want to know of the cluster."""

from __future__ import annotations

import pytest

from cli.inspection.node_list import cluster_access
from cli.logsource import SourceFlags
from cli.settings import ConfigError
from eventstore.errors import UsageError

_HERE = SourceFlags({"nats_url": "nats://127.0.0.1:1"})


@pytest.mark.parametrize("name", ["*", "a.b", "a b", ">", "x" * 33])
def test_a_name_that_no_cluster_can_have(name: str) -> None:
    """As a part of a subject it would ask other clusters, or none."""
    with pytest.raises(ConfigError, match="must be a name of letters, digits, - and _"):
        cluster_access(_HERE, name)


def test_a_cluster_and_its_server_are_needed() -> None:
    name, access = cluster_access(_HERE, "plant")
    assert (name, access.urls) == ("plant", ("nats://127.0.0.1:1",))
    for flags, cluster in ((_HERE, None), (SourceFlags(), "plant")):
        with pytest.raises(UsageError, match="give the cluster and its NATS server"):
            cluster_access(flags, cluster)
