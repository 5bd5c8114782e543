"""What became of a message: its story, put together from the events that concern it.

Pure, as every fold: records in, stories out. Followed are the latest messages on topics, or one
message by its position; kept are only those, and the state of the one session that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from eventstore.events import (
    Acked,
    Completed,
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.positions import Position, from_runs, position
from projections.node import NodeState
from protocol.trie import FilterTrie

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.records import Record
    from projections.session import SessionState

Fate: TypeAlias = Literal["queued", "in_flight", "releasing", "acknowledged", "dropped", "gone"]
"""What has become of one copy. ``releasing``: PUBREC came, PUBCOMP is awaited. ``gone``: the
session ended before the copy was complete."""


class Step(NamedTuple):
    """Something that happened to a message or a copy of it."""

    at: Position
    time_ms: int
    what: str
    """queued, delivered, redelivered, acked, received, completed, dropped, session_ended; for
    the message itself released or discarded."""
    pid: int = 0
    """Packet identifier, 0 when there is none."""
    detail: str = ""
    """Cause or reason."""


@dataclass(slots=True, eq=False)
class Copy:
    """A message on its way to one session."""

    story: Story
    session: str
    filter: str
    qos: int
    retain: bool
    fate: Fate = "queued"
    pid: int = 0
    steps: list[Step] = field(default_factory=list)


class Standing(NamedTuple):
    """How the session that is asked for stood when the message took effect."""

    known: bool
    """There was such a session."""
    connected: bool
    filters: list[tuple[str, int]]
    """Its subscriptions that match the topic, with the granted QoS."""


@dataclass(slots=True, eq=False)
class Story:
    """One message and all its copies."""

    ref: Position
    time_ms: int
    session: str
    """Who published it."""
    topic: str
    qos: int
    retain: bool
    will: bool
    size: int
    pid: int
    """Packet identifier under which it was published; 0 at QoS 0 and for a will."""
    steps: list[Step] = field(default_factory=list)
    standing: Standing | None = None
    """None: nobody was asked for, or it has not taken effect."""
    effective: bool = False
    """Routed to subscribers: at QoS 2 with its PUBREL."""
    copies: list[Copy] = field(default_factory=list)


class Explainer:
    """Follows messages through the records of complete turns, from the first of the log on.

    ``wanted`` chooses topics; the latest ``last`` messages on them are followed. With ``ref``
    it is this message alone. ``client`` is the session whose subscriptions are looked at.
    """

    def __init__(
        self,
        *,
        wanted: Callable[[str], bool] | None = None,
        last: int = 1,
        ref: Position | None = None,
        client: str | None = None,
    ) -> None:
        self.stories: dict[Position, Story] = {}
        self._wanted = wanted
        self._last = last
        self._ref = ref
        self._client = client
        self._node = NodeState()
        self._clean: set[str] = set()
        self._sent: dict[str, dict[int, Copy]] = {}
        self._open: dict[str, set[Copy]] = {}

    @property
    def state(self) -> SessionState | None:
        """The session that is asked for, as it is now; None when there is none."""
        return self._node.sessions.get(self._client) if self._client is not None else None

    def take(self, record: Record) -> None:
        """Follow the events of a record; raises UnreadableEvent."""
        base = position(record.sequence, 0)
        for index, event in record.events():
            at = base + index
            self._follow(event, at, record.time_ms)
            if self._client is not None and getattr(event, "session", None) == self._client:
                empty = [b""] * event.count if isinstance(event, MessagePublished) else ()
                self._node.apply(event, at, record.time_ms, empty)

    def _follow(self, event: Event, at: Position, ms: int) -> None:
        if isinstance(event, MessagePublished):
            self._published(event, at, ms)
        elif isinstance(event, (SessionOpened, SessionClosed, SessionExpired)):
            self._session_event(event, at, ms)
        elif isinstance(event, Delivered):
            self._delivered(event, at, ms)
        elif isinstance(event, Queued):
            for offset, ref in self._concerned(from_runs(event.refs)):
                copy = self._new_copy(ref, event.session, event.filter, event.qos, event.retain)
                copy.steps.append(Step(at + offset, ms, "queued"))
        elif isinstance(event, (Redelivered, Acked, Received, Completed)):
            self._answered(event, at, ms)
        elif isinstance(event, Released):
            for offset, ref in self._concerned(from_runs(event.refs)):
                story = self.stories[ref]
                story.steps.append(Step(at + offset, ms, "released", story.pid))
                self._takes_effect(story)
        elif isinstance(event, MessageDropped):
            self._dropped(event, at, ms)

    def _concerned(self, refs: list[Position]) -> Iterator[tuple[int, Position]]:
        """Yield (index, position) of the messages that are followed."""
        if self.stories and not self.stories.keys().isdisjoint(refs):
            for offset, ref in enumerate(refs):
                if ref in self.stories:
                    yield offset, ref

    # ------------------------------------------------------------- the message

    def _published(self, event: MessagePublished, at: Position, ms: int) -> None:
        chosen = self._chosen(event, at)
        if not chosen:
            return
        pids = from_runs(event.pids)
        for offset in chosen:
            story = Story(
                at + offset,
                ms,
                event.session,
                topic_of(event, offset),
                event.qos,
                event.retain,
                event.will,
                event.sizes if isinstance(event.sizes, int) else event.sizes[offset],
                pids[offset] if offset < len(pids) else 0,
            )
            self.stories[story.ref] = story
            if event.qos < 2 or event.will:
                self._takes_effect(story)
        if self._wanted is not None:
            while len(self.stories) > self._last:
                self._forget(self.stories.pop(next(iter(self.stories))))

    def _chosen(self, event: MessagePublished, at: Position) -> list[int]:
        """Return which of an event's messages are followed, in order."""
        if self._ref is not None:
            offset = self._ref - at
            return [offset] if 0 <= offset < event.count else []
        wanted = self._wanted
        if wanted is None:
            return []
        if not event.which:
            first = max(0, event.count - self._last)
            return list(range(first, event.count)) if wanted(event.topics[0]) else []
        topics = {number for number, topic in enumerate(event.topics) if wanted(topic)}
        if not topics:
            return []
        backwards = range(event.count - 1, -1, -1)
        found = (offset for offset in backwards if event.which[offset] in topics)
        return list(islice(found, self._last))[::-1]

    def _takes_effect(self, story: Story) -> None:
        story.effective = True
        if self._client is None:
            return
        state = self.state
        if state is None:
            story.standing = Standing(known=False, connected=False, filters=[])
            return
        trie: FilterTrie[tuple[str, int]] = FilterTrie()
        for held in state.active():
            trie.insert(held.filter, held.filter, (held.filter, held.qos))
        story.standing = Standing(True, state.connected, sorted(trie.match(story.topic)))

    def _forget(self, story: Story) -> None:
        for copy in story.copies:
            self._settle(copy)

    # ------------------------------------------------------------- its copies

    def _new_copy(
        self, ref: Position, session: str, topic_filter: str, qos: int, retain: bool
    ) -> Copy:
        story = self.stories[ref]
        copy = Copy(story, session, topic_filter, qos, retain)
        story.copies.append(copy)
        self._open.setdefault(session, set()).add(copy)
        return copy

    def _waiting(self, ref: Position, session: str, topic_filter: str) -> Copy | None:
        for copy in self.stories[ref].copies:
            if (copy.session, copy.filter, copy.fate) == (session, topic_filter, "queued"):
                return copy
        return None

    def _settle(self, copy: Copy) -> None:
        """Follow a copy no more: nothing can happen to it."""
        opened = self._open.get(copy.session)
        if opened is not None:
            opened.discard(copy)
            if not opened:
                del self._open[copy.session]
        sent = self._sent.get(copy.session)
        if sent is not None and sent.get(copy.pid) is copy:
            del sent[copy.pid]
            if not sent:
                del self._sent[copy.session]

    def _delivered(self, event: Delivered, at: Position, ms: int) -> None:
        pids: list[int] = []
        for offset, ref in self._concerned(from_runs(event.refs)):
            pids = pids or from_runs(event.pids)
            copy = self._waiting(ref, event.session, event.filter) if event.queued >= 0 else None
            if copy is None:
                copy = self._new_copy(ref, event.session, event.filter, event.qos, event.retain)
            copy.fate = "in_flight"
            copy.qos = event.qos
            copy.pid = pids[offset]
            copy.steps.append(Step(at + offset, ms, "delivered", copy.pid))
            self._sent.setdefault(event.session, {})[copy.pid] = copy

    def _answered(
        self, event: Redelivered | Acked | Received | Completed, at: Position, ms: int
    ) -> None:
        sent = self._sent.get(event.session)
        if not sent:
            return
        for offset, pid in enumerate(from_runs(event.pids)):
            copy = sent.get(pid)
            if copy is None:
                continue
            if isinstance(event, Redelivered):
                copy.steps.append(Step(at + offset, ms, "redelivered", pid, event.cause))
            elif isinstance(event, Received):
                copy.fate = "releasing"
                copy.steps.append(Step(at + offset, ms, "received", pid))
            else:
                copy.fate = "acknowledged"
                what = "acked" if isinstance(event, Acked) else "completed"
                copy.steps.append(Step(at + offset, ms, what, pid))
                self._settle(copy)

    def _dropped(self, event: MessageDropped, at: Position, ms: int) -> None:
        for _, ref in self._concerned(from_runs(event.refs)):
            copy = self._waiting(ref, event.session, event.filter) if event.queued >= 0 else None
            if copy is None:
                copy = self._new_copy(ref, event.session, event.filter, 0, retain=False)
            copy.fate = "dropped"
            copy.steps.append(Step(at, ms, "dropped", 0, event.reason))
            self._settle(copy)

    # ------------------------------------------------------------- sessions

    def _session_event(
        self, event: SessionOpened | SessionClosed | SessionExpired, at: Position, ms: int
    ) -> None:
        name = event.session
        if isinstance(event, SessionClosed) and name not in self._clean:
            return
        if not (isinstance(event, SessionOpened) and event.resumed):
            self._session_ended(name, at, ms)
        if isinstance(event, SessionOpened) and event.clean:
            self._clean.add(name)
        else:
            self._clean.discard(name)

    def _session_ended(self, name: str, at: Position, ms: int) -> None:
        for copy in sorted(self._open.get(name, ()), key=lambda one: one.story.ref):
            copy.fate = "gone"
            copy.steps.append(Step(at, ms, "session_ended"))
            self._settle(copy)
        for story in self.stories.values():
            if story.session == name and not story.effective:
                already = story.steps and story.steps[-1].what == "discarded"
                if not already:
                    story.steps.append(Step(at, ms, "discarded"))


def topic_of(event: MessagePublished, offset: int) -> str:
    """Return the topic of one of an event's messages."""
    return event.topics[event.which[offset] if event.which else 0]
