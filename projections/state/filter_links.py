"""Links between the filters of a session, which keep messages on one topic in order.

Two filters are linked when some topic matches both, or when a chain of other filters links them. A
message for a session waits in the queue of one filter, which may be any of the linked ones. So that
no message overtakes an earlier one of its topic [MQTT-4.6.0-6],

- a message is added to the end of the last queue that is linked with its filter, or begins a new
  queue if it is a retained message whose filter has none, and
- a queue is sent when all linked queues that began to fill before it are empty.

A link must exist as long as any message waits. The removal of a filter may remove links. Then,
while any message waits, every filter counts as linked with every other
(``SessionState.all_linked``). Unnecessary waiting is allowed, overtaking is not. The removal of a
filter without wildcards loses no link: all filters that match its topic are linked with each other.

A shared subscription is linked with no filter: its messages wait in its own session.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topics import filters_overlap

if TYPE_CHECKING:
    from projections.state.session import SessionState

_FEW: Final = 32
"""Up to this number, all filters are compared; above it, only if few of them have wildcards."""
_SHORT: Final = 256
"""Length in characters of the longest filter compared; longer ones are linked with every other."""


def holds_links(state: SessionState, topic_filter: str) -> bool:
    """Return whether the removal of a session's filter may remove links."""
    if topic_filter.startswith(SHARE):
        return False
    return not _is_plain(topic_filter) or len(state.subscriptions) > _FEW


def linked(state: SessionState, topic_filter: str) -> AbstractSet[str]:
    """Return the filters that are linked with a filter of the session, itself included."""
    if state.links is None:
        state.links = _groups(state)
    return state.links[topic_filter]


def _groups(state: SessionState) -> dict[str, set[str]]:
    filters = state.subscriptions
    reaching = [name for name in filters if not _is_plain(name) and not name.startswith(SHARE)]
    many = len(filters) > _FEW and len(reaching) * len(filters) > _FEW * _FEW
    if state.all_linked or many:
        all_of_them = {name for name in filters if not name.startswith(SHARE)}
        return {name: {name} if name.startswith(SHARE) else all_of_them for name in filters}
    groups = {name: {name} for name in filters}
    for name in reaching:
        for other in filters:
            if other.startswith(SHARE):
                continue
            mine, theirs = groups[name], groups[other]
            if mine is not theirs and _overlap(name, other):
                small, large = sorted((mine, theirs), key=len)
                large |= small
                groups.update(dict.fromkeys(small, large))
    return groups


def _is_plain(topic_filter: str) -> bool:
    return len(topic_filter) <= _SHORT and "+" not in topic_filter and "#" not in topic_filter


def _overlap(name: str, other: str) -> bool:
    return len(name) > _SHORT or len(other) > _SHORT or filters_overlap(name, other)
