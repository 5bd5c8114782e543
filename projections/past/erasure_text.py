"""The events of sealed contents as text."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from eventstore import display
from eventstore.format.erasure_events import (
    COPIES,
    FOLLOWED,
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.name_entries import topic_shown
from eventstore.format.positions import Run, from_runs
from eventstore.reading import position_text

_CAUSES: Final = {
    "restored": ", as before the log was restored",
    "keep": ", by personal_keep",
    FOLLOWED: ", as in another log",
    COPIES: ", as it had contents of another log that are erased there",
}


def _named(topics: Sequence[str], keys: Sequence[Run]) -> str:
    """Return topics with the numbers of their keys."""
    pairs = zip(topics, from_runs(keys), strict=True)
    shown = (f"{display.name(topic_shown(topic))} (key {key})" for topic, key in pairs)
    return position_text.several(shown, len(topics))


def _requested(event: ErasureRequested, _: Any) -> str:
    ended = ", periods that had ended" if event.before_ms else ""
    topics = _named(event.topics, event.keys)
    return (
        f"erasure {event.erasure} requested by {display.name(event.by)}"
        f"{_CAUSES.get(event.cause, '')}{ended}: {topics}"
    )


def _snapshot(event: KeysSnapshot, _: Any) -> str:
    if not event.topics:
        return f"no topic has a key; the last one was {event.highest}"
    return f"keys of topics: {_named(event.topics, event.keys)}"


ERASURE_WORDS: Final[dict[type, Callable[..., str]]] = {
    TopicsKeyed: lambda event, _: f"sealed from here on: {_named(event.topics, event.keys)}",
    KeysSnapshot: _snapshot,
    ErasureRequested: _requested,
    Erased: lambda event, _: (
        f"erasure {event.erasure} done: {display.count_of(event.keys, 'key')} destroyed"
    ),
}
