"""Makes a sink from its settings; each kind loads only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox.runner import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox.sink import Sink


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


def _http(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.http import HttpOptions, HttpSink

    files = ("signing_secret_file", "token_file", "ca_file")
    paths = {name: _path(settings[name]) for name in files}
    return HttpSink(HttpOptions(settings["url"], settings["format"], settings["timeout"], **paths))


def _python(settings: Mapping[str, Any]) -> Sink:
    from outbox.sinks.python import PythonOptions, PythonSink

    return PythonSink(
        PythonOptions(
            *(settings["target"], _path(settings["directory"]), settings["options"]),
            *(settings["timeout"], settings["memory"]),
        )
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name is not None else None


_SINKS = {"http": _http, "python": _python}
