"""The sink otlp with a collector that decodes by opentelemetry-proto: what became of messages."""

from collections.abc import Callable, Iterator

import pytest
from harness.broker import Broker
from harness.collector import Collector, Span
from harness.packets import Publish
from harness.rawclient import RawClient
from harness.waiting import until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from e2e.outbox_process import VICTIMS, strike
from e2e.test_outbox_http import publish
from e2e.tools import run

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server


def traces(collector: Collector, more: str = "") -> str:
    return (
        f'[sink.traces]\nkind = "otlp"\nurl = "{collector.url}"\nretry = "50ms 200ms"\n'
        f'templates = ["orders/+"]\n{more}'
    )


def take(client: RawClient, count: int) -> None:
    """Receive and acknowledge messages."""
    for _ in range(count):
        client.acknowledge(client.expect_a(Publish))


def of(spans: list[Span], operation: str) -> list[Span]:
    return [span for span in spans if span.attributes["messaging.operation.name"] == operation]


def test_a_message_from_publisher_to_receivers(
    make_broker: Callable[..., Broker], collector: Collector
) -> None:
    broker = make_broker(traces(collector))
    broker.start()
    with RawClient(broker.port) as one, RawClient(broker.port) as two:
        one.connect("one")
        one.subscribe(("orders/#", 1))
        two.connect("two")
        two.subscribe(("orders/1", 2))
        publish(broker, "a")
        publish(broker, "b", qos=2)
        for client in (one, two):
            take(client, 2)
        until(lambda: len(collector.spans) == 6, "all spans")
    published, delivered = of(collector.spans, "publish"), of(collector.spans, "deliver")
    assert [span.name for span in published] == ["publish orders/+"] * 2
    assert {span.kind for span in published} == {"SERVER"}
    assert {span.kind for span in delivered} == {"PRODUCER"}
    first, second = published
    assert first.told == ["durable"]
    assert second.told == ["received", "durable"]
    for span in published:
        below = [each for each in delivered if each.trace_id == span.trace_id]
        assert {each.parent_id for each in below} == {span.span_id}
        receivers = {each.attributes["messaging.client.id"]: each for each in below}
        assert receivers["one"].told == ["sent"]
        filters = {
            name: each.attributes["messaging.destination.subscription.name"]
            for name, each in receivers.items()
        }
        assert filters == {"one": "orders/#", "two": "orders/1"}
        assert all(span.start_ns <= each.start_ns for each in below)
    assert {span.attributes["foldmq.qos"] for span in published} == {1, 2}
    (exact,) = [
        each
        for each in delivered
        if each.trace_id == second.trace_id and each.attributes["messaging.client.id"] == "two"
    ]
    assert exact.told == ["sent", "received"]
    # The identity of a message is the position that other commands show.
    where = ("--data-dir", str(broker.data_dir))
    (event, *_) = run("log", *where, "--json", "--type", "MessagePublished").objects
    log, _, place = first.attributes["messaging.message.id"].partition("/")
    assert (place, first.resource["service.instance.id"]) == (event["position"], log)
    assert first.resource["service.name"] == "foldmq"
    broker.stop()


@pytest.mark.parametrize("victim", [*VICTIMS, "collector"])
def test_after_a_kill_there_is_every_span_and_those_that_come_twice_are_equal(
    make_broker: Callable[..., Broker], collector: Collector, victim: str
) -> None:
    broker = make_broker(traces(collector))
    broker.start()
    with RawClient(broker.port) as client:
        client.connect("away", clean=False)
        client.subscribe(("orders/#", 1))
        client.disconnect()
    publish(broker, *range(10))  # they wait for the session, so the cursor does, too
    until(lambda: len(of(collector.spans, "publish")) == 10, "the first messages")
    strike(broker, victim, collector.stop)
    publish(broker, *range(10, 20))
    if victim == "collector":
        collector.start()
    with RawClient(broker.port) as client:
        client.connect("away", clean=False)
        take(client, 20)
        until(lambda: len(set(map(repr, collector.spans))) >= 40, "all spans")
    by_id: dict[str, set[str]] = {}
    for span in collector.spans:
        by_id.setdefault(span.span_id, set()).add(repr(span))
    assert len(by_id) == 40
    assert {len(each) for each in by_id.values()} == {1}
    assert {tuple(span.told) for span in of(collector.spans, "deliver")} == {("queued", "sent")}
    broker.stop()


def test_a_collector_that_refuses_or_leaves_spans_out(
    make_broker: Callable[..., Broker], collector: Collector
) -> None:
    broker = make_broker(traces(collector, 'batch_wait = "500ms"\n'))
    where = ("--data-dir", str(broker.data_dir))
    collector.reply = b'{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}'
    broker.start()
    publish(broker, "a")
    until(lambda: len(collector.spans) == 1, "the span")
    until(lambda: "too old" in broker.log, "the warning")
    collector.reply = b"{}"
    collector.answer = lambda post: 400 if b"orders/2" in post.body else 200
    publish(broker, "b", topic="orders/2")
    publish(broker, "c")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 1, "the refusal")
    (row,) = run("outbox", "refused", "traces", *where, "--json").objects
    assert row["code"] == 400
    collector.answer = lambda _post: 200
    run("outbox", "retry", "traces", *where)
    until(lambda: len(collector.spans) == 3, "the span that was refused")
    assert collector.spans[-1].attributes["messaging.destination.name"] == "orders/2"
    broker.stop()


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_spans_and_metrics_in_both_encodings(
    make_broker: Callable[..., Broker], collector: Collector, encoding: str
) -> None:
    broker = make_broker(traces(collector, f'encoding = "{encoding}"\nmetrics = "200ms"\n'))
    collector.reply = b""  # of protobuf: a success
    if encoding == "json":
        collector.reply = b"{}"
    broker.start()
    with RawClient(broker.port) as client:
        client.connect("one")
        client.subscribe(("orders/#", 1))
        publish(broker, "a")
        take(client, 1)
        until(lambda: len(collector.spans) == 2, "the spans")
    first, second = collector.spans
    assert (first.name, second.name) == ("publish orders/+", "deliver orders/+")
    assert (second.parent_id, second.trace_id) == (first.span_id, first.trace_id)
    assert second.told == ["sent"]

    def received() -> float:
        points = collector.metrics[-1]["foldmq_messages_received"].sum.data_points
        return sum(float(point.as_double) for point in points)

    until(lambda: bool(collector.metrics) and received() >= 1, "a metric of the message")
    metrics = collector.metrics[-1]
    assert metrics["foldmq_outbox_up"].gauge.data_points[0].attributes[0].value.string_value
    histogram = metrics["foldmq_commit_seconds"].histogram
    (point,) = histogram.data_points
    assert point.count == sum(point.bucket_counts)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert metrics["foldmq_messages_received"].sum.is_monotonic
    broker.stop()


def test_what_a_collector_leaves_out_in_protobuf_is_logged(
    make_broker: Callable[..., Broker], collector: Collector
) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    answer.partial_success.error_message = "too old"
    collector.reply = answer.SerializeToString()
    broker = make_broker(traces(collector, 'encoding = "protobuf"\n'))
    broker.start()
    publish(broker, "a")
    until(lambda: "too old" in broker.log, "the warning")
    broker.stop()
