"""Trace of the messages on some topics, from publication to acknowledgement.

Publications are observed where they are routed and, at QoS 1 and 2, where they are recorded. The
positions of matching ones are kept, up to a limit, and so are the packet identifiers of their
deliveries: events about them are shown.

The work for one batch is limited, so that a trace does not slow down publishers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from actors.inspection import trace_lines as tracelines
from actors.inspection.recorder import AT_ONCE, Trace, TraceRecorder, add_line, add_lines
from actors.kernel.actor import LoopActor
from actors.replay.selection import TopicMatches
from actors.routing.routes import Route
from actors.session.node_context import NodeContext
from actors.session.session_messages import Batch, Publication
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    RetainedExpired,
    Returned,
)
from eventstore.format.node_events import RetainedCleared
from eventstore.format.positions import Position, count_runs, to_runs
from projections.views.session_view import Published
from protocol.mqtt.packets import Publish
from protocol.mqtt.topics import matches

_LOOKED_AT = 4096
"""Maximum number of messages of one batch or event that are checked."""
_REMEMBERED = 10_000
"""Maximum number of messages, and of deliveries, that are kept."""


_BEFORE = frozenset({MessageDropped, MessagePublished, RetainedCleared, RetainedExpired})
_FOLLOWED = _BEFORE | {
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    Returned,
}
_ENDED = (Acked, Completed, Refused, Returned)
"""Events with which deliveries end."""
_BY_PACKET_ID = (*_ENDED, Received, Redelivered)
"""Events about deliveries that they name by packet identifier."""
_IDS = ("pids", "refs")
_COLUMNS = (*_IDS, "reasons", "expires")
"""Fields with a value for each message."""


class TopicTrace:
    """Follows the messages on topics that match a filter."""

    def __init__(
        self, topic_filter: str, trace: Trace, node: NodeContext, recorder: TraceRecorder
    ) -> None:
        self.trace = trace
        self.events = _BEFORE
        """Types of events that may be about matching messages."""
        self._node = node
        self._recorder = recorder
        self._matches = TopicMatches(topic_filter).__getitem__
        self._messages: dict[Position, Published] = {}
        self._sent: dict[tuple[str, int], Position] = {}
        """(client, packet identifier) -> the message delivered under it."""

    # Publications.

    def on_publication(self, publication: Publication) -> None:
        """Show the receivers of matching messages; at QoS 0 also the messages."""
        session, batch = publication.session, publication.batch
        topics = batch.topics[:_LOOKED_AT]
        if True not in map(self._matches, topics):
            return
        chosen = [at for at, topic in enumerate(topics) if self._matches(topic)]
        self.trace.skip(len(batch) - len(topics))
        routes = self._node.router.routes
        actor = self._recorder.session_actor(session)
        lines = (
            line
            for route, run in groupby(chosen, lambda at: routes[topics[at]])
            for line in self._routed(actor, session, batch, route, list(run))
        )
        groups = sum(1 for _ in groupby(chosen, lambda at: routes[topics[at]]))
        count = groups + (0 if batch.positions else len(chosen))
        add_lines([self.trace], count, lines)

    def _routed(
        self, actor: LoopActor, session: str, batch: Batch, route: Route, chosen: list[int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines about messages with the same route."""
        refs, topics = batch.positions, batch.topics
        if not refs:
            payloads = batch.payloads
            for at in chosen:
                publish = Publish(topics[at], payloads[at], batch.qos, False, False, 0)
                for packet in tracelines.packet_objects(publish):
                    yield self._line(actor, session, "publish", packet)
        groups = self._node.router.groups
        targets = [
            {
                "client": tracelines.short(target.session),
                "filter": tracelines.short(target.filter),
                "qos": min(batch.qos, target.qos),
                "connected": target.actor is not None or bool(groups.find(target.session).online),
            }
            for target in route.targets[: tracelines.LISTED]
        ]
        frozen = route.frozen[: tracelines.LISTED - len(targets)]
        targets += [self._frozen(name, topics[chosen[0]].decode(), batch.qos) for name in frozen]
        yield {
            **self._line(actor, session, "route"),
            "topic": tracelines.topic_text(topics[chosen[0]]),
            "count": len(chosen),
            **({"position": refs[chosen[0]]} if refs else {}),
            "targets": targets,
            "total": len(route.targets) + len(route.frozen),
        }

    def _frozen(self, name: str, topic: str, qos: int) -> dict[str, Any]:
        """Return a receiver whose session is frozen; a message at QoS 0 leaves it so."""
        state = self._node.state.sessions.peek(name)
        subscriptions = [] if state is None else state.active()
        best = max(
            (each for each in subscriptions if matches(each.filter, topic)),
            key=lambda each: each.qos,
            default=None,
        )
        return {
            "client": tracelines.short(name),
            "filter": "" if best is None else tracelines.short(best.filter),
            "qos": 0 if best is None else min(qos, best.qos),
            "connected": False,
        }

    def _published(self, event: MessagePublished, at: Position, payloads: Sequence[bytes]) -> None:
        """Show recorded messages, and keep their positions."""
        topics = [topic.encode() for topic in event.topics[:_LOOKED_AT]]
        matching = {place for place, topic in enumerate(topics) if self._matches(topic)}
        if not matching:
            return
        self.events = _FOLLOWED
        looked_at = range(min(event.count, _LOOKED_AT))
        which = event.which
        chosen = [index for index in looked_at if which[index] in matching] if which else looked_at
        self.trace.skip(event.count - len(looked_at))
        for index in chosen:
            topic = tracelines.short(event.topics[which[index] if which else 0])
            self._remember(at + index, Published(topic, len(payloads[index])))
        pids = tracelines.first_of(event.pids, _LOOKED_AT)
        actor = self._recorder.session_actor(event.session)
        lines = (
            self._recorder.event_line(
                actor,
                replace(
                    event,
                    topics=[self._messages[at + index].topic],
                    which=[],
                    pids=list(pids[index : index + 1]),
                    sizes=len(payloads[index]),
                    count=1,
                ),
                at + index,
                payloads[index : index + 1],
            )
            for index in chosen[:AT_ONCE]
        )
        add_lines([self.trace], len(chosen), lines)

    # Events.

    def on_event(self, event: Event, at: Position, payloads: Sequence[bytes]) -> None:
        """Show the part of an event that is about matching messages."""
        if isinstance(event, MessagePublished):
            self._published(event, at, payloads)
            return
        part: Event | None = None
        if isinstance(event, MessageDropped) and event.topics:
            topics = self._matching(event.topics)
            part = replace(event, topics=topics) if topics else None
        elif isinstance(event, (RetainedCleared, RetainedExpired)):
            topics = self._matching(event.topics[:_LOOKED_AT])
            part = type(event)(topics) if topics else None
        elif self._messages:
            part = self._narrowed(event)
        if part is not None:
            self._add_event(part, at)

    def _matching(self, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if self._matches(topic.encode())]

    def _narrowed(self, event: Any) -> Event | None:
        """Return the part of an event that is about messages that match."""
        columns = {
            name: tracelines.first_of(runs, _LOOKED_AT)
            for name in _COLUMNS
            if not isinstance(runs := getattr(event, name, ()), int)
        }
        messages, session = self._messages, event.session
        refs: Sequence[Position | None] = columns["refs"]
        if isinstance(event, _BY_PACKET_ID):
            refs = [self._sent.get((session, pid)) for pid in columns["pids"]]
        else:
            refs = [ref if ref in messages else None for ref in columns["refs"]]
        chosen = [(place, ref) for place, ref in enumerate(refs) if ref is not None]
        if not chosen:
            return None
        self.trace.skip(max(count_runs(getattr(event, name, [])) for name in _IDS) - _LOOKED_AT)
        changes: dict[str, Any] = {
            name: to_runs([column[place] for place, _ in chosen])
            for name, column in columns.items()
            if len(column) == len(refs)
        }
        matching = [ref for _, ref in chosen]
        if isinstance(event, (Queued, Expired)):
            changes["size"] = sum(messages[ref].size for ref in matching)
        elif isinstance(event, Returned):
            changes["refs"] = to_runs(matching)
        elif isinstance(event, MessageDropped):
            changes["count"] = len(matching)
        elif isinstance(event, Delivered):
            for place, ref in chosen:
                self._remember_sent(session, columns["pids"][place], ref)
        part: Event = replace(event, **changes)
        return part

    def _add_event(self, event: Event, at: Position) -> None:
        session = getattr(event, "session", None) or ""
        pids: list[int] = []
        refs = tracelines.first_of(getattr(event, "refs", ()), 3)
        if isinstance(event, _BY_PACKET_ID):
            pids = tracelines.first_of(event.pids, _LOOKED_AT)
            refs = [self._sent[session, pid] for pid in pids[:3]]
        about = tracelines.known_messages(refs, self._messages)
        actor = self._recorder.session_actor(session)

        def line() -> dict[str, Any]:
            of_event = self._recorder.event_line(actor, event, at, (), self._messages)
            return {**of_event, "messages": about}

        add_line([self.trace], line)
        for pid in pids if isinstance(event, _ENDED) else ():
            del self._sent[session, pid]

    # Shared by both.

    def _remember(self, ref: Position, message: Published) -> None:
        self._messages[ref] = message
        if len(self._messages) > _REMEMBERED:
            del self._messages[next(iter(self._messages))]

    def _remember_sent(self, session: str, pid: int, ref: Position) -> None:
        self._sent.pop((session, pid), None)
        self._sent[session, pid] = ref
        if len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def _line(
        self, actor: LoopActor, session: str, kind: str, packet: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        what = "PUBLISH" if packet is not None else kind
        line = self._recorder.line(actor, kind, what)
        line["client"] = tracelines.short(session)
        if packet is not None:
            line["packet"] = packet
        return line
