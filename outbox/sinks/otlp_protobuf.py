"""Requests of OTLP in protobuf, from their JSON; it needs the package opentelemetry-proto."""

import base64
import binascii
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

TYPE: Final = "application/x-protobuf"
_MESSAGES: Final[dict[str, tuple[Any, Any]]] = {
    "traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}
_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})
"""Fields that OTLP's JSON has in hexadecimal, and that of protobuf in Base64."""


def encode_request(signal: str, body: bytes) -> bytes:
    """Return a request of OTLP in JSON, in protobuf; ``signal`` is traces or metrics."""
    request: Any = ParseDict(_with_base64(orjson.loads(body)), _MESSAGES[signal][0]())
    data: bytes = request.SerializeToString()
    return data


def decode_answer(signal: str, data: bytes) -> dict[str, Any]:
    """Return the answer of a collector as JSON has it; raises ValueError if it is none."""
    try:
        answer: dict[str, Any] = MessageToDict(_MESSAGES[signal][1].FromString(data))
    except Exception as error:  # noqa: BLE001 - DecodeError is no public name in all versions
        raise ValueError(str(error)) from None
    return answer


def _with_base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(binascii.unhexlify(each)).decode()
        if key in _IDS
        else _with_base64(each)
        for key, each in value.items()
    }
