"""A collector of OpenTelemetry that takes spans and metrics over HTTP, and reads them strictly."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

import orjson
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from harness.webhooks import Post, Webhooks

_IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
_LONG = {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue"}


class Span(NamedTuple):
    """A span, as a test looks at it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    error: str
    links: list[tuple[str, str]]
    state: str
    resource: dict[str, Any]

    @property
    def told(self) -> list[str]:
        """The names of its events."""
        return [name for name, _ in self.events]


def _check(value: Any) -> Any:
    """Return a JSON value with identifiers as protobuf has them; fail unless it is OTLP's JSON."""
    if isinstance(value, list):
        return [_check(each) for each in value]
    if not isinstance(value, dict):
        return value
    checked = {}
    for key, each in value.items():
        if key in _IDS:
            assert re.fullmatch(rf"[0-9a-f]{{{_IDS[key]}}}", each), (key, each)
            checked[key] = base64.b64encode(binascii.unhexlify(each)).decode()
        else:
            assert key not in _LONG or isinstance(each, str), (key, each)
            assert key not in ("kind", "code") or isinstance(each, int), (key, each)
            checked[key] = _check(each)
    return checked


def _parsed(post: Post, request: Any) -> Any:
    """Return a request; fails for anything that OTLP does not permit."""
    assert not [name for name in post.headers if name.startswith("webhook-")]
    if post.headers["Content-Type"] == "application/x-protobuf":
        request.MergeFromString(post.body)
        return request
    assert post.headers["Content-Type"] == "application/json"
    return json_format.ParseDict(_check(orjson.loads(post.body)), request)


def spans_in(post: Post) -> list[Span]:
    """Return the spans of a request."""
    request = _parsed(post, ExportTraceServiceRequest())
    return [
        _span(span, _attributes(resource.resource.attributes))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _span(span: Any, resource: dict[str, Any]) -> Span:
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    return Span(
        *(span.name, trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")),
        *(span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()),
        *(span.start_time_unix_nano, span.end_time_unix_nano),
        _attributes(span.attributes),
        [(event.name, event.time_unix_nano) for event in span.events],
        span.status.message if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR else "",
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        *(span.trace_state, resource),
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector(Webhooks):
    """The server; `answer` is as for webhooks."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = lambda _post: 200
        self.reply = b"{}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        """The spans of all requests that were answered with success, in order."""
        return [span for post in self._stored("traces") for span in spans_in(post)]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each request, by name."""
        requests = [
            _parsed(post, ExportMetricsServiceRequest()) for post in self._stored("metrics")
        ]
        return [
            {metric.name: metric for metric in scope.metrics}
            for request in requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
        ]

    def _stored(self, signal: str) -> list[Post]:
        assert {post.path for post in self.posts} <= {"/v1/traces", "/v1/metrics"}
        ok = [post for post in self.posts if post.code // 100 == 2]
        return [post for post in ok if post.path == f"/v1/{signal}"]
