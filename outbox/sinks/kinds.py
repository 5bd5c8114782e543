"""Makes sinks, and readers for them, from their settings; each kind loads only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox.log_reader import DueMessages
from outbox.runner import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventstore.reading.log_source import LogSource
    from outbox.log_reader import DurableEnd
    from outbox.selection import Selection
    from outbox.sink import Sink
    from outbox.sinks.otlp import OtlpSink
    from outbox.sinks.spans import SpanOptions


def make_sink(settings: Mapping[str, Any]) -> tuple[Sink, BatchLimits]:
    """Return a sink and the limits of its batches, from a table ``[sink.NAME]``."""
    sink = _SINKS[settings["kind"]](settings)
    limits = BatchLimits(
        1 if settings.get("format") in ("structured", "binary") else settings["batch"],
        settings["batch_bytes"],
        settings["batch_wait"],
        *settings["retry"],
    )
    return sink, limits


def make_reader(
    settings: Mapping[str, Any], source: LogSource, selection: Selection, end: DurableEnd, log: str
) -> DueMessages:
    """Return a reader of what is due to a destination."""
    if settings["kind"] != "otlp":
        return DueMessages(source, selection, end)
    from outbox.sinks.otlp import TracedMessages

    return TracedMessages(source, selection, end, span_options(settings), log)


def span_options(settings: Mapping[str, Any]) -> SpanOptions:
    """Return which messages are traced."""
    from outbox.sinks.spans import SpanOptions

    always = settings["always"]
    return SpanOptions(
        *(settings["ratio"], settings["templates"], "dropped" in always, "redelivered" in always),
        settings["slow"] * 1000 if "slow" in always else None,
    )


def _http(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.http import HttpOptions, HttpSink

    files = ("signing_secret_file", "token_file", "ca_file")
    paths = {name: _path(settings[name]) for name in files}
    return HttpSink(HttpOptions(settings["url"], settings["format"], settings["timeout"], **paths))


def make_otlp_sink(settings: Mapping[str, Any], signal: str = "traces") -> OtlpSink:
    """Return a sink for traces, or one for metrics."""
    from outbox.sinks.http import HttpOptions
    from outbox.sinks.otlp import OtlpSink

    options = HttpOptions(
        settings["url"],
        timeout=settings["timeout"],
        token_file=_path(settings["token_file"]),
        ca_file=_path(settings["ca_file"]),
    )
    return OtlpSink(options, settings["encoding"], signal)


def _python(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.python import PythonOptions, PythonSink

    return PythonSink(
        PythonOptions(
            *(settings["target"], _path(settings["directory"]), settings["options"]),
            *(settings["timeout"], settings["memory"]),
        )
    )


def _postgres(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.postgres import PostgresOptions, PostgresSink

    return PostgresSink(
        PostgresOptions(
            *(settings["url"], settings["table"], settings["timeout"]),
            *(_path(settings["password_file"]), _path(settings["ca_file"])),
        )
    )


def _kafka(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.kafka import KafkaOptions, KafkaSink

    return KafkaSink(
        KafkaOptions(
            *(settings["servers"], settings["topic"], settings["timeout"]),
            *(_path(settings["password_file"]), _path(settings["ca_file"]), settings["options"]),
        )
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name is not None else None


_SINKS = {
    "http": _http,
    "kafka": _kafka,
    "python": _python,
    "otlp": make_otlp_sink,
    "postgres": _postgres,
}
