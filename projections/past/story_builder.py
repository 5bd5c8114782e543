"""The histories of messages, assembled from the events that concern them.

Pure, like every fold. A builder follows messages by their positions, and keeps only these.

In a log that was cut, a message from before the first record is known by references to it and by
repetitions of it: a MessagesCarried, which keeps its position, or a RetainedSnapshot, which gives
it a new one. A message is found by any position that it ever had in the log.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.node_events import (
    CheckpointCompleted,
    LimitsApplied,
    MessagesCarried,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.records import Record
from eventstore.format.stored_properties import expiries
from projections.past.message_story import (
    DeliveryCopy,
    DeliveryOutcome,
    MessageStory,
    StoryStep,
    topic_of,
)
from projections.state.session import InFlight
from projections.state.snapshot import decode_session
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from protocol.mqtt.reason_codes import FAILURE

DeliveryAnswer: TypeAlias = Redelivered | Acked | Received | Refused | Completed | Returned
_ANSWERS: Final[dict[type, tuple[str, DeliveryOutcome]]] = {
    Acked: ("acked", "acknowledged"),
    Received: ("received", "releasing"),
    Refused: ("refused", "refused"),
    Completed: ("completed", "acknowledged"),
    Returned: ("returned", "returned"),
}
"""Type of event that ends or continues a delivery -> name of its step, outcome of the copy."""


class OpenCopies:
    """Copies of messages whose histories are not complete."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[int, DeliveryCopy]] = {}
        """The copies that were sent, by session and packet identifier."""
        self._open: dict[str, set[DeliveryCopy]] = {}

    def begin(
        self, story: MessageStory, session: str, topic_filter: str, qos: int, *, retain: bool
    ) -> DeliveryCopy:
        """Add a copy to the history of a message."""
        copy = DeliveryCopy(story, session, topic_filter, qos, retain)
        story.copies.append(copy)
        self._open.setdefault(session, set()).add(copy)
        return copy

    def sent(self, copy: DeliveryCopy, pid: int) -> None:
        """Note that a copy was sent under a packet identifier."""
        copy.pid = pid
        self._sent.setdefault(copy.session, {})[pid] = copy

    def answered(self, event: DeliveryAnswer, at: Position, ms: int) -> None:
        """Add an event about sent copies to their histories."""
        sent = self._sent.get(event.session)
        if not sent:
            return
        codes = from_runs(getattr(event, "reasons", ()))
        for offset, pid in enumerate(from_runs(event.pids)):
            copy = sent.get(pid)
            if copy is None:
                continue
            code = codes[offset] if codes else 0
            detail = f"0x{code:02x}" if code else ""
            if isinstance(event, Redelivered):
                again = "pubrel_repeated" if copy.outcome == "releasing" else "redelivered"
                copy.steps.append(StoryStep(at + offset, ms, again, pid, event.cause))
                continue
            what, copy.outcome = _ANSWERS[type(event)]
            if code >= FAILURE and isinstance(event, Acked):  # with PUBCOMP it has the message
                copy.outcome = "refused"
            copy.steps.append(StoryStep(at + offset, ms, what, pid, detail))
            if copy.outcome != "releasing":
                self.settle(copy)

    def settle(self, copy: DeliveryCopy) -> None:
        """Stop following a copy: its history is complete."""
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

    def end_session(self, session: str, at: Position, ms: int, reason: str) -> None:
        """Complete the copies for a session that ended."""
        for copy in sorted(self._open.get(session, ()), key=lambda held: held.story.ref):
            copy.outcome = "gone"
            copy.steps.append(StoryStep(at, ms, "session_ended", detail=reason))
            self.settle(copy)

    def awaited(self) -> Iterator[tuple[Literal["sent", "held"], str]]:
        """Yield the sessions with open copies: ``sent`` if one was sent, else ``held``."""
        for name, copies in self._open.items():
            yield "sent" if any(copy.outcome != "queued" for copy in copies) else "held", name


class StoryBuilder:
    """Follows messages through the records of complete turns, from the first of the log on.

    ``refs`` are their positions; ``begin`` is the sequence of the log's first record.
    """

    def __init__(self, refs: Iterable[Position], begin: int = 1) -> None:
        self.stories: dict[Position, MessageStory] = {}
        """The followed messages, in the order of the log."""
        self._refs: set[Position] = set()
        self._begin = begin
        self._partial = begin > 1
        """Whether no checkpoint of the log is complete yet."""
        self._known: dict[Position, MessageStory] = {}
        """Followed messages by all their positions."""
        self._unreleased: dict[Position, MessageStory] = {}
        """Followed messages that have not taken effect, by their first position."""
        self._record: Record | None = None
        """The record that is being read."""
        self._limits: Mapping[str, Any] | None = None
        self._parts: list[dict[str, Any]] = []
        self._clean: set[str] = set()
        self._copies = OpenCopies()
        self.follow(sorted(refs))

    def follow(self, refs: Iterable[Position]) -> None:
        """Follow more messages: those from before the log, or those not published yet."""
        for ref in refs:
            if ref not in self._refs:
                self._refs.add(ref)
                if self._old(ref):
                    story = MessageStory(ref, before=self._begin, effective=True)
                    self.stories[ref] = self._known[ref] = story

    def keep(self, refs: Iterable[Position]) -> None:
        """Stop following all messages but some of those followed, in the order of the log."""
        kept = {ref: self.stories[ref] for ref in refs}
        for ref in self.stories.keys() - kept.keys():
            self._unreleased.pop(ref, None)
            for copy in self.stories[ref].copies:
                self._copies.settle(copy)
        self.stories, self._refs = kept, set(kept)
        self._known = {ref: story for ref, story in self._known.items() if story.ref in kept}

    def look_ahead(self, record: Record) -> None:
        """Read a record with a MessagesCarried; call it for all of these first."""
        for _, event in record.events():
            if isinstance(event, MessagesCarried):
                for offset, story in self._concerned(from_runs(event.refs)):
                    _describe(story, event, offset)

    def follows(self, refs: Iterable[Position]) -> bool:
        """Return whether one of the positions belongs to a followed message."""
        return bool(self._known) and not self._known.keys().isdisjoint(refs)

    def awaited(self) -> Iterator[tuple[Literal["sent", "held"], str]]:
        """Yield the sessions whose events can still change the histories.

        ``sent``: a message was sent to the session, and the client's answer matters. ``held``: only
        the end of the session matters, because a message waits for it, or because the session has
        not released it yet.
        """
        yield from self._copies.awaited()
        for story in self._unreleased.values():
            if story.session is not None:
                yield "held", story.session

    def note_clean(self, session: str, *, clean: bool) -> None:
        """Record whether a session ends with its connection, from a record that is not read."""
        (self._clean.add if clean else self._clean.discard)(session)

    def take(self, record: Record) -> None:
        """Process the events of a record; raises UnreadableEvent."""
        base = position(record.sequence, 0)
        self._record = record
        for index, event in record.events():
            at = base + index
            self._follow(event, at, record.time_ms)
            if isinstance(event, CheckpointCompleted) and not self._old(event.begun):
                self._partial = False

    def _follow(self, event: Event, at: Position, ms: int) -> None:
        if isinstance(event, MessagePublished):
            self._published(event, at, ms)
        elif isinstance(event, (SessionOpened, SessionClosed, SessionExpired)):
            self._session_event(event, at, ms)
        elif isinstance(event, Delivered):
            self._delivered(event, at, ms)
        elif isinstance(event, Queued):
            for offset, story in self._concerned(from_runs(event.refs)):
                copy = self._copies.begin(
                    story, event.session, event.filter, event.qos, retain=event.retain
                )
                copy.steps.append(StoryStep(at + offset, ms, "queued"))
        elif isinstance(event, (Redelivered, Acked, Received, Refused, Completed, Returned)):
            self._copies.answered(event, at, ms)
        elif isinstance(event, Released):
            self._released(event, at, ms)
        elif isinstance(event, MessageDropped):
            self._dropped(event, at, ms)
        elif isinstance(event, RetainedSnapshot):
            self._repeated(event, at, ms)
        elif isinstance(event, (MessagesCarried, InboundReplaced)):
            self._noted(event, at, ms)
        elif isinstance(event, SessionSnapshot):
            self._snapshot(event, at, ms)
        else:
            self._follow_v5(event, at, ms)

    def _follow_v5(self, event: Event, at: Position, ms: int) -> None:
        if isinstance(event, Expired):
            self._left_queue(event, event.filter, at, ms, "expired")
        elif isinstance(event, Assigned):
            inner = event.session.split("/", 2)[-1]
            self._left_queue(event, inner, at, ms, "assigned", event.member)
        elif isinstance(event, RetainedExpired):
            self._retained_expired(event, at, ms)
        elif isinstance(event, LimitsApplied):
            self._limits = event.limits

    def _concerned(self, refs: list[Position]) -> Iterator[tuple[int, MessageStory]]:
        """Yield (index, history) of the followed messages."""
        if self._known and not self._known.keys().isdisjoint(refs):
            for offset, ref in enumerate(refs):
                if ref in self._known:
                    yield offset, self._known[ref]

    # ------------------------------------------------------------- the message

    def _published(self, event: MessagePublished, at: Position, ms: int) -> None:
        chosen = [offset for offset in range(event.count) if at + offset in self._refs]
        if not chosen:
            return
        pids = from_runs(event.pids)
        expires = expiries(self._record.blocks(event), ms) if self._record is not None else []
        for offset in chosen:
            story = MessageStory(
                at + offset,
                ms,
                event.session,
                topic_of(event, offset),
                None if event.share else event.qos,
                event.retain,
                event.will,
                event.sizes if isinstance(event.sizes, int) else event.sizes[offset],
                expires[offset] if expires else 0,
                pids[offset] if offset < len(pids) else 0,
                share=event.share,
            )
            self.stories[story.ref] = self._known[story.ref] = story
            if event.qos < 2 or event.will:
                self._takes_effect(story, at)
            else:
                self._unreleased[story.ref] = story

    def _noted(self, event: MessagesCarried | InboundReplaced, at: Position, ms: int) -> None:
        for offset, story in self._concerned(from_runs(event.refs)):
            if isinstance(event, InboundReplaced):
                story.steps.append(StoryStep(at, ms, "replaced"))
            else:
                story.steps.append(StoryStep(at + offset, ms, "carried"))

    def _released(self, event: Released, at: Position, ms: int) -> None:
        for offset, story in self._concerned(from_runs(event.refs)):
            if story.before:
                story.session, story.qos = event.session, 2
                story.pid = from_runs(event.pids)[offset]
            story.steps.append(StoryStep(at + offset, ms, "released", story.pid))
            self._takes_effect(story, at)

    def _takes_effect(self, story: MessageStory, at: Position) -> None:
        story.effective, story.effective_at = True, at
        self._unreleased.pop(story.ref, None)

    # ------------------------------------------------------------- from before the log

    def _old(self, ref: Position) -> bool:
        return ref < position(self._begin, 0)

    def _repeated(self, event: RetainedSnapshot, at: Position, ms: int) -> None:
        for offset, story in self._concerned(from_runs(event.refs)):
            _describe(story, event, offset)
            if story.before:
                story.retain, story.qos = True, event.qos[offset]
            if event.session is None:
                self._known[at + offset] = story
                story.steps.append(StoryStep(at + offset, ms, "repeated"))
            elif story.before and not story.steps:
                story.session, story.effective = event.session, False
                self._unreleased[story.ref] = story

    def _snapshot(self, event: SessionSnapshot, at: Position, ms: int) -> None:
        """Record the messages from before the log that a session holds."""
        if event.part == 0:
            self._parts = []
            if event.state.get("clean"):
                self._clean.add(event.session)
        if not self._partial:
            return
        self._parts.append(event.state)
        if not event.last:
            return
        parts, self._parts = self._parts, []
        name = event.session
        if not self._known or not any(part.keys() & _HOLDING for part in parts):
            return
        state = decode_session(name, parts)
        for held in state.waiting.values():
            for waiting in held.queue or ():
                delivery = InFlight(waiting >> FLAG_BITS, waiting & _FLAGS, held, 0)
                self._found(name, delivery, "queued", StoryStep(at, ms, "held", 0, "queued"))
        for pid, delivery in state.inflight.items():
            self._found(name, delivery, "in_flight", StoryStep(at, ms, "held", pid, "in_flight"))
        for pid, delivery in state.releasing.items():
            self._found(name, delivery, "releasing", StoryStep(at, ms, "held", pid, "releasing"))
        for pid, ref in state.inbound.items():
            story = self._known.get(ref)
            if story is not None and story.before:
                story.session, story.qos, story.pid = name, 2, pid
                story.effective = False
                self._unreleased[story.ref] = story

    def _found(
        self, session: str, held: InFlight, outcome: DeliveryOutcome, step: StoryStep
    ) -> None:
        """Record a copy that a checkpoint found."""
        story = self._known.get(held.ref)
        if story is None or not story.before:
            return
        topic_filter, pid = held.subscription.filter, step.pid
        for copy in story.copies:
            if (copy.session, copy.filter, copy.pid) == (session, topic_filter, pid):
                return
        qos, retain = held.flags & QOS_MASK, bool(held.flags & RETAIN_FLAG)
        copy = self._copies.begin(story, session, topic_filter, qos, retain=retain)
        copy.outcome = outcome
        copy.steps.append(step)
        if pid:
            self._copies.sent(copy, pid)

    # ------------------------------------------------------------- its copies

    def _copy_of(
        self,
        story: MessageStory,
        event: Delivered | Expired | Assigned | MessageDropped,
        topic_filter: str,
        outcome: DeliveryOutcome | None,
        *,
        retain: bool = False,
    ) -> DeliveryCopy:
        """Return the copy for a subscription that has come to this, or a new one."""
        for copy in story.copies:
            place = copy.session, copy.filter, copy.outcome
            if place == (event.session, topic_filter, outcome):
                return copy
        return self._copies.begin(story, event.session, topic_filter, 0, retain=retain)

    def _delivered(self, event: Delivered, at: Position, ms: int) -> None:
        pids: list[int] = []
        for offset, story in self._concerned(from_runs(event.refs)):
            pids = pids or from_runs(event.pids)
            before: DeliveryOutcome | None = "queued" if event.queued >= 0 else None
            copy = self._copy_of(story, event, event.filter, before, retain=event.retain)
            copy.outcome = "in_flight"
            copy.qos = event.qos
            self._copies.sent(copy, pids[offset])
            copy.steps.append(StoryStep(at + offset, ms, "delivered", copy.pid))

    def _left_queue(
        self,
        event: Expired | Assigned,
        topic_filter: str,
        at: Position,
        ms: int,
        what: Literal["expired", "assigned"],
        detail: str = "",
    ) -> None:
        """Follow a copy that leaves or skips the queue without being sent to the client."""
        for offset, story in self._concerned(from_runs(event.refs)):
            copy = self._copy_of(story, event, topic_filter, "queued")
            copy.outcome = what
            copy.steps.append(StoryStep(at + offset, ms, what, 0, detail))
            self._copies.settle(copy)

    def _retained_expired(self, event: RetainedExpired, at: Position, ms: int) -> None:
        """Follow the retained message of each topic to its expiry."""
        topics = set(event.topics)
        for story in reversed(self.stories.values()):
            if story.topic in topics and story.retain and story.effective:
                topics.discard(story.topic)
                story.steps.append(StoryStep(at, ms, "expired"))

    def _dropped(self, event: MessageDropped, at: Position, ms: int) -> None:
        for _, story in self._concerned(from_runs(event.refs)):
            before: DeliveryOutcome = "queued" if event.queued >= 0 else "in_flight"
            copy = self._copy_of(story, event, event.filter, before)
            copy.outcome = "dropped"
            copy.steps.append(StoryStep(at, ms, "dropped", 0, event.reason, self._limits))
            self._copies.settle(copy)

    # ------------------------------------------------------------- sessions

    def _session_event(
        self, event: SessionOpened | SessionClosed | SessionExpired, at: Position, ms: int
    ) -> None:
        name = event.session
        if isinstance(event, SessionClosed):
            if event.expiry is not None:
                (self._clean.discard if event.expiry else self._clean.add)(name)
            if name not in self._clean:
                return
        if not (isinstance(event, SessionOpened) and event.resumed):
            reason = event.reason if isinstance(event, SessionExpired) else ""
            self._session_ended(name, at, ms, reason)
        if isinstance(event, SessionOpened) and event.clean:
            self._clean.add(name)
        else:
            self._clean.discard(name)

    def _session_ended(self, name: str, at: Position, ms: int, reason: str) -> None:
        self._copies.end_session(name, at, ms, reason)
        for story in self._unreleased.values():
            if story.session == name:
                already = story.steps and story.steps[-1].what == "discarded"
                if not already:
                    story.steps.append(StoryStep(at, ms, "discarded"))


_FLAGS: Final[int] = RETAIN_FLAG | QOS_MASK
_HOLDING = frozenset({"inflight", "releasing", "queues", "inbound"})
"""Fields of a snapshot that refer to messages."""


def _describe(story: MessageStory, event: MessagesCarried | RetainedSnapshot, offset: int) -> None:
    if story.topic is None:
        story.topic = topic_of(event, offset)
        story.size = event.sizes if isinstance(event.sizes, int) else event.sizes[offset]
