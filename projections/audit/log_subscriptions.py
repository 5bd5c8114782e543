"""The topic filters of the sessions of a log as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.display import name as shown
from eventstore.format.events import LOG_SESSION
from eventstore.format.node_events import CheckpointCompleted
from projections.audit.subscription_spans import SUBSCRIPTION_EVENTS
from projections.state.session import SHARED_PART
from projections.state.single_session import SessionFold
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import is_bridge_state, is_reserved_topic

if TYPE_CHECKING:
    from eventstore.format.event_parsing import Event
    from eventstore.format.positions import Position
    from projections.state.session import SessionState, SubscriptionState

_NEVER = 1 << 62
_KNOWN_TOPICS = 100_000


class LogSubscriptions:
    """The filters of the sessions of a log as it grows.

    ``begin`` is the sequence of its first record: in a log that was cut, the filters are known only
    after its first checkpoint.
    """

    def __init__(self, begin: int = 1) -> None:
        self.known = begin <= 1
        self._whole = 0 if self.known else _NEVER
        self._folds: dict[str, SessionFold] = {}
        self._filters: dict[str, set[str]] = {}
        self._trie: FilterTrie[str] = FilterTrie()
        self._matched: dict[str, str] = {}
        self._shares: dict[str, Position] = {}
        """Shared subscription -> where it began."""

    def take(self, event: Event, at: Position, time_ms: int) -> None:
        """Process the next event."""
        if isinstance(event, CheckpointCompleted) and not self.known:
            self.known, self._whole = True, at
            for known in self._folds.values():
                known.whole = at
        if not isinstance(event, SUBSCRIPTION_EVENTS):
            return
        session = event.session
        if session not in self._folds:
            self._folds[session] = SessionFold(session, self._whole)
        fold = self._folds[session]
        fold.take(event, at, time_ms)
        state: SessionState | None = fold.state
        if session.startswith(SHARE):
            if state is None:
                self._shares.pop(session, None)
            else:
                self._shares.setdefault(session, at)
        wanted = {one.filter for one in state.active() if _matches(one)} if state else set()
        held = self._filters.get(session, set())
        if state is None:
            del self._folds[session]
        if wanted != held:
            self._change(session, held, wanted)

    def _change(self, session: str, held: set[str], wanted: set[str]) -> None:
        for gone in held - wanted:
            if not gone.startswith(SHARE):
                self._trie.remove(gone, session)
        for new in wanted - held:
            if not new.startswith(SHARE):
                self._trie.insert(new, session, f"{shown(new)} of {shown(session)}")
        self._filters[session] = wanted
        self._matched.clear()

    def has_share(self, share: str, before: Position) -> bool:
        """Return whether there is a shared subscription that began before a position."""
        return self._shares.get(share, _NEVER) < before

    def match(self, topic: str) -> str:
        """Return a filter that a topic matches, with its session; empty: there is none."""
        found = self._matched.get(topic)
        if found is None:
            if len(self._matched) >= _KNOWN_TOPICS:
                self._matched.clear()
            closed = is_reserved_topic(topic) and not is_bridge_state(topic)
            matching = () if closed else self._trie.match(topic)
            found = self._matched[topic] = next(iter(matching), "")
        return found


def _matches(held: SubscriptionState) -> bool:
    """Return whether a subscription matches topics, in this log."""
    return not held.options & SHARED_PART and not held.filter.startswith(LOG_SESSION)
