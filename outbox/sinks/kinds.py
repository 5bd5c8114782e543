"""Makes sinks, and readers for them, from their settings; each kind loads only what it needs."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
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
    kind = settings["kind"]
    sink = make_otlp_sink(settings) if kind == "otlp" else _make(kind, settings)
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


def make_otlp_sink(settings: Mapping[str, Any], signal: str = "traces") -> OtlpSink:
    """Return a sink for traces, or one for metrics."""
    from outbox.sinks.otlp import OtlpSink

    return OtlpSink(_options_of("http", settings), settings["encoding"], signal)


def _options_of(kind: str, settings: Mapping[str, Any]) -> Any:
    """Return the options of a kind from those settings that have the names of its fields."""
    options = getattr(import_module(f"outbox.sinks.{kind}"), f"{kind.title()}Options")
    values = {each.name: settings[each.name] for each in fields(options) if each.name in settings}
    paths = {
        name: Path(values[name]) for name in _PATHS & values.keys() if values[name] is not None
    }
    return options(**values | paths)


def _make(kind: str, settings: Mapping[str, Any]) -> Sink:
    options = _options_of(kind, settings)
    sink: Sink = getattr(import_module(f"outbox.sinks.{kind}"), f"{kind.title()}Sink")(options)
    return sink


_PATHS = frozenset({"signing_secret_file", "token_file", "ca_file", "password_file", "directory"})
