"""The owner of a log: the records name it, not the stream."""

import pytest
from harness.logs import HeldLog, LogBuilder

from eventstore.format.node_events import BrokerStarted
from spark.runtime.marked_errors import BadOption
from spark.tables.node_names import check_claimed_nodes, node_of, nodes_of


def log(node: str, stream: str | None = None, records: int = 3) -> LogBuilder:
    made = LogBuilder(node)
    made.stream = stream or made.stream
    for _ in range(records):
        made.record(BrokerStarted("1"))
    return made


@pytest.mark.parametrize("stream", [None, "COPY", "FOLDMQ_LOG_other"])
def test_the_node_is_read_from_the_records(stream: str | None) -> None:
    made = log("n1", stream)
    assert node_of(HeldLog(made)) == "n1"
    assert node_of(HeldLog(made, first=3)) == "n1"
    assert node_of(HeldLog(made, gone=[1])) == "n1"
    made.damage(1)
    assert node_of(HeldLog(made)) == "n1"


@pytest.mark.parametrize(("stream", "node"), [(None, "n1"), ("COPY", "COPY")])
def test_without_records_the_node_is_named_after_the_stream(stream: str | None, node: str) -> None:
    made = log("n1", stream, 2)
    made.damage(1)
    made.damage(2)
    assert node_of(HeldLog(made)) == node
    assert node_of(HeldLog(log("n1", stream, 0))) == node


def test_a_log_that_was_restored_as_another_node_is_of_that_node() -> None:
    made = log("n1", "FOLDMQ_LOG_n2")
    made.node = "n2"
    made.record(BrokerStarted("1"))
    assert node_of(HeldLog(made)) == "n2"
    with pytest.raises(BadOption, match="are both logs of node n1"):
        nodes_of([HeldLog(made), HeldLog(log("n1"))])


def test_a_node_has_one_log() -> None:
    logs = [HeldLog(log("n1")), HeldLog(log("n2", "COPY"))]
    assert nodes_of(logs) == {"FOLDMQ_LOG_n1": "n1", "COPY": "n2"}
    with pytest.raises(BadOption, match="FOLDMQ_LOG_n1 and ANOTHER are both logs of node n1"):
        nodes_of([*logs, HeldLog(log("n1", "ANOTHER"))])


def test_claims_about_other_nodes_are_refused() -> None:
    check_claimed_nodes(["n1"], {"n1": 1, "n2": 2})
    with pytest.raises(BadOption, match=r"claimed of node n3, whose log .*: there is n1, n2"):
        check_claimed_nodes(["n1", "n3"], ["n2", "n1"])
    with pytest.raises(BadOption, match="there is none"):
        check_claimed_nodes(["n1"], [])
