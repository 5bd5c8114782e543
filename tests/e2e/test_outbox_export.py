"""`foldmq outbox export`: what became of messages of the past, as spans of the same log."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from harness.broker import Broker
from harness.collector import Collector, Span
from harness.packets import Publish
from harness.rawclient import RawClient
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from e2e.test_outbox_http import publish
from e2e.tools import Ran, run

pytestmark = pytest.mark.timeout(180)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server


class Past:
    """A stopped broker, and what its log exports."""

    def __init__(self, broker: Broker, collector: Collector, folder: Path) -> None:
        self.where = ("--data-dir", str(broker.data_dir))
        self._collector = collector
        self._config = folder / "traces.toml"

    def configure(self, more: str = "", kind: str = "otlp") -> None:
        url = f'url = "{self._collector.url}"\n'
        self._config.write_text(f'[sink.traces]\nkind = "{kind}"\n{url}{more}')

    def run(self, *flags: str, code: int = 0) -> Ran:
        command = ("outbox", "export", "traces", *self.where, "--config", str(self._config))
        return run(*command, *flags, code=code)

    def spans(self, *flags: str) -> list[Span]:
        """Export; return its spans."""
        before = len(self._collector.spans)
        ran = self.run(*flags)
        spans = self._collector.spans[before:]
        plural = "" if len(spans) == 1 else "s"
        assert ran.lines == [f"{len(spans)} span{plural} sent"]
        return spans


def delivered(spans: list[Span]) -> dict[tuple[str, str], Span]:
    """The deliveries by message and receiver; each has one."""
    return {
        (
            span.attributes["messaging.destination.name"],
            span.attributes["messaging.client.id"],
        ): span
        for span in spans
        if span.attributes["messaging.operation.name"] == "deliver"
    }


def publish5(port: int, topic: str, flags: str) -> None:
    """Publish with the context of a trace."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "five", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [
        ("traceparent", f"00-{TRACE}-{PARENT}-{flags}"),
        ("tracestate", "vendor=1"),
    ]
    client.publish(topic, b"x", 1, properties=properties).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def past(make_broker: Callable[..., Broker], collector: Collector, tmp_path: Path) -> Past:
    """A log with all that may become of a message."""
    broker = make_broker("max_queued_messages = 2\n")
    broker.start()
    with RawClient(broker.port) as client:  # it will be away, and its queue is short
        client.connect("away", clean=False)
        client.subscribe(("q/#", 1))
        client.disconnect()
    publish(broker, 0, topic="q/0")
    publish(broker, 1, topic="q/1")
    publish(broker, 2, topic="q/2")
    with RawClient(broker.port) as client:  # it does not acknowledge, and comes again
        client.connect("slow", clean=False)
        client.subscribe(("r/#", 1))
        publish(broker, "x", topic="r/1")
        client.expect_a(Publish)
        client.reset()
    with RawClient(broker.port) as client:
        client.connect("slow", clean=False)
        client.acknowledge(client.expect_a(Publish))
        with RawClient(broker.port) as member:
            member.connect("member")
            member.subscribe(("$share/jobs/s/#", 1))
            publish(broker, "x", topic="s/1")
            member.acknowledge(member.expect_a(Publish))
        with RawClient(broker.port) as member:
            member.connect("member0")
            member.subscribe(("$share/jobs/s/#", 0))
            publish(broker, "x", topic="s/2")
            member.expect_a(Publish)
        client.subscribe(("t/#", 1))
        publish5(broker.port, "t/1", "01")
        publish5(broker.port, "t/2", "00")
        for _ in range(2):
            client.acknowledge(client.expect_a(Publish))
        client.disconnect()
    publish(broker, "x", topic="r/2")
    with RawClient(broker.port) as client:  # a clean start ends the session that waits
        client.connect("slow", clean=True)
        client.disconnect()
    broker.stop()
    return Past(broker, collector, tmp_path)


def test_what_became_of_messages(past: Past) -> None:
    past.configure('templates = ["q/+", "r/#"]\n')
    spans = past.spans()
    assert past.spans() == spans
    assert len({span.span_id for span in spans}) == len(spans)
    became = {key: (span.told, span.error) for key, span in delivered(spans).items()}
    assert became == {
        ("q/0", "away"): (["queued"], ""),
        ("q/1", "away"): (["queued"], ""),
        ("q/2", "away"): ([], "queue_messages"),
        ("r/1", "slow"): (["sent", "redelivered"], ""),
        ("s/1", "member"): (["sent"], ""),
        ("s/2", "member0"): ([], ""),
        ("t/1", "slow"): (["sent"], ""),
        ("r/2", "slow"): (["queued"], "session_ended"),
    }
    found = delivered(spans)
    assert found["q/0", "away"].attributes["foldmq.unfinished"] is True
    assert "foldmq.unfinished" not in found["r/1", "slow"].attributes
    assert found["q/2", "away"].attributes["error.type"] == "queue_messages"
    assert (found["r/1", "slow"].name, found["s/1", "member"].name) == ("deliver r/#", "deliver")
    shared = found["s/1", "member"].attributes
    assert shared["messaging.consumer.group.name"] == "jobs"
    assert shared["messaging.destination.subscription.name"] == "s/#"
    told = found["t/1", "slow"]
    (parent,) = [span for span in spans if span.span_id == told.parent_id]
    assert (parent.trace_id, parent.parent_id, parent.state) == (TRACE, PARENT, "vendor=1")
    assert (told.trace_id, told.links) == (TRACE, [(TRACE, PARENT)])


@pytest.mark.parametrize(
    ("always", "expected"),
    [
        ("", {"t/1"}),
        ("dropped", {"t/1", "q/2", "r/2"}),
        ("redelivered", {"t/1", "r/1"}),
        ("slow", {"t/1", "q/0", "q/1"}),
    ],
)
def test_the_outcome_may_demand_a_trace(past: Past, always: str, expected: set[str]) -> None:
    listed = f'always = ["{always}"]\nslow = "1ms"\n' if always else ""
    past.configure(f'ratio = 0\n{listed}filters = ["q/#", "r/#", "t/#"]\n')
    spans = past.spans()
    topics = {span.attributes["messaging.destination.name"] for span in spans}
    # A slow machine has more slow deliveries, and never fewer.
    assert topics >= expected if always == "slow" else topics == expected
    for topic in expected:
        mine = [span for span in spans if span.attributes["messaging.destination.name"] == topic]
        assert [span.attributes["messaging.operation.name"] for span in mine][:1] == ["publish"]
        assert len(mine) == 2


def test_a_part_of_the_log(past: Past) -> None:
    past.configure()
    published = run("log", *past.where, "--json", "--type", "MessagePublished").objects
    first, last = published[3]["position"], published[4]["position"]
    spans = past.spans("--from", first, "--to", last)
    topics = {span.attributes["messaging.destination.name"] for span in spans}
    assert topics == {"r/1", "s/1"}
    # Also of what came later, its end is there.
    assert delivered(spans)["r/1", "slow"].told == ["sent", "redelivered"]


def test_errors_are_one_line(past: Past, collector: Collector) -> None:
    past.configure()
    collector.answer = lambda _post: 401
    assert "401 Unauthorized" in past.run(code=69).err
    collector.stop()
    assert "cannot connect to 127.0.0.1" in past.run(code=69).err
    assert "'10m ago' or 'now'" in past.run("--from", "tomorrow", code=2).err
    past.configure('filters = ["a"]\n', kind="http")
    assert "only otlp can export" in past.run(code=2).err
    said = run("outbox", "export", "other", *past.where, code=2).err
    assert "--config names the file that has it" in said


def test_a_collector_that_comes_back_gets_all(past: Past, collector: Collector) -> None:
    past.configure("batch = 3\n")
    collector.answer = lambda _post: 503 if len(collector.posts) % 2 else 200
    spans = past.spans()
    collector.answer = lambda _post: 200
    assert past.spans() == spans
