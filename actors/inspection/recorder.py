"""Records the actions of traced actors, as lines of the traces that cover them.

A traced actor has an observer, which the kernel calls while the actor runs. The journal's observer
sees the actor's events and its output to the gate; it exists while anything is traced
(:class:`actors.inspection.tracer.Tracer`). Failures here are logged and do not affect actors.

A message between two actors of one trace is shown once: where it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import orjson
import structlog
from pykka.messages import _ActorStop

from actors.connection.admission import Admission
from actors.connection.connection import Connection
from actors.inspection import trace_lines as tracelines
from actors.inspection.views import client_of
from actors.kernel.actor import LoopActor
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import ConnectionAttached, Packets
from actors.session.subscription_actor import Subscription
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import Position
from eventstore.format.stored_properties import on_clock
from eventstore.log.pending_record import OutputSink
from projections.views.session_view import Topics
from protocol.mqtt.server_packet_decoder import count_server_packets, read_server_packets

AT_ONCE = 100
"""Maximum number of lines for one observation."""
_LINE_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
"""Maximum unsent bytes; a NATS server accepts this much in one message."""


class End(NamedTuple):
    """The reason for the end of a trace."""

    cause: Literal["actor", "broker", "lease", "stopped"]
    why: str
    """The same as text."""


@dataclass(eq=False, repr=False)
class Trace:
    """The lines of one trace, until they are sent; bounded in rate and size.

    In each second the first ``rate`` lines are shown. The others are counted, and the count is sent
    with the lines. ``on_content`` is called when there is something to send.
    """

    token: str
    subject: str
    _rate: int
    _monotonic: Callable[[], float]
    _on_content: Callable[[], None]

    def __post_init__(self) -> None:
        self.actors: set[LoopActor] = set()
        """The actors that it currently covers."""
        self.client: str | None = None
        """The client whose actors it covers, including future ones."""
        self.one: LoopActor | None = None
        """The actor whose end also ends the trace."""
        self.over = False
        """Whether it has ended: no more actors are added."""
        self.deadline = 0.0
        """Monotonic time at which it ends unless it is kept."""
        self._begun = self._monotonic()
        self._given = 0
        self._lines: list[bytes] = []
        self._size = 0
        self._skipped = 0
        self._number = 0

    def room(self) -> int:
        """Return how many lines it accepts at this time."""
        now = self._monotonic()
        if now - self._begun >= 1.0:
            self._begun, self._given = now, 0
        return self._rate - self._given if self._size < _BUFFER_BYTES else 0

    def add(self, line: bytes) -> None:
        """Add a line, or count it as skipped."""
        if not self.room() or len(line) > _LINE_BYTES:
            self.skip(1)
            return
        self._given += 1
        self._size += len(line)
        self._lines.append(line)
        self._on_content()

    def skip(self, count: int) -> None:
        """Count lines that are not shown."""
        if count > 0:
            self._skipped += count
            self._on_content()

    def take(self, end: End | None = None) -> bytes | None:
        """Remove and return the unsent lines; None if there are none.

        ``end`` is the reason for the end of the trace.
        """
        if not (self._lines or self._skipped or end):
            return None
        self._number += 1
        about: dict[str, Any] = {"number": self._number, "skipped": self._skipped}
        if end is not None:
            about |= {"ended": end.why, "cause": end.cause}
        data = b'{"lines":[' + b",".join(self._lines) + b"]," + orjson.dumps(about)[1:]
        self._lines, self._size, self._skipped = [], 0, 0
        return data


def add_lines(traces: Iterable[Trace], count: int, lines: Iterable[dict[str, Any]]) -> None:
    """Add as many of ``count`` lines to traces as they accept; the others are not created."""
    traces = list(traces)
    room = max((trace.room() for trace in traces), default=0)
    omitted = count
    if room:
        for line in islice(lines, min(count, room, AT_ONCE)):
            encoded = orjson.dumps(line)
            for trace in traces:
                trace.add(encoded)
            omitted -= 1
    for trace in traces:
        trace.skip(omitted)


def add_line(traces: Sequence[Trace], make: Callable[[], dict[str, Any]]) -> None:
    """Add a line to traces; it is made only if they accept it."""
    if traces:
        add_lines(traces, 1, (make() for _ in range(1)))


_log = structlog.get_logger("foldmq")

_SLICE, _PAUSE = 500, 0.002
"""Number of actors added to a trace at a time, and seconds until the next ones."""
_COUNTED = 2000
"""Maximum packets of one write that are counted but not shown; the rest count as one."""


@dataclass(slots=True)
class _SentMessage:
    """A message that an actor sent to one or more other actors."""

    actor: LoopActor
    traces: list[Trace]
    message: Any
    target: LoopActor
    """The first receiver."""
    more: int = 0
    """Number of other receivers."""


class TracingObserver:
    """Reports the actions of one actor to the traces that cover it; see ``ActorObserver``."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self.traces: list[Trace] = []
        self.begin = partial(recorder.begin, self.traces)
        self.end = recorder.end
        self.sends = partial(recorder.run_safely, recorder.on_sends)

        def safely(show: Callable[..., None]) -> Callable[..., None]:
            return partial(recorder.run_safely, show, self.traces)

        self.gets, self.took = safely(recorder.on_gets), safely(recorder.on_took)
        self.wrote, self.closes = safely(recorder.on_wrote), safely(recorder.on_closes)
        self.ended = safely(recorder.on_ended)


@dataclass(eq=False, repr=False)
class TraceRecorder:
    """Renders the actions of actors as lines.

    ``ended`` is called with a trace whose only actor has ended, and with the reason.
    """

    _node: NodeContext
    _admission: Admission
    _ended: Callable[[Trace, End], None]

    def __post_init__(self) -> None:
        self.running: LoopActor | None = None
        """The traced actor that is running."""
        self._traces: list[Trace] = []
        """The traces that cover it."""
        self._last_sent: _SentMessage | None = None
        self._failures = 0
        self.clients: dict[str, list[Trace]] = {}
        """The traces of each traced client."""

    def run_safely(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call ``work``; log its exception instead of raising it."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the actor that is looked at must go on
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:
                _log.error("trace: lines are missing", count=self._failures, exc_info=error)

    # Coverage.

    def cover(self, actor: LoopActor, trace: Trace) -> None:
        """Add an actor to a trace."""
        if actor.stopped or trace.over or trace in _traces_of(actor):
            return
        if actor.observer is None:
            actor.observer = TracingObserver(self)
        _traces_of(actor).append(trace)
        trace.actors.add(actor)

    def cover_client(self, name: str, trace: Trace) -> None:
        """Add the actors of a client to a trace, current and future ones."""
        trace.client = name
        self.clients.setdefault(name, []).append(trace)
        node = self._node
        node.kernel.on_spawn = self._on_spawn
        self._admission.on_connect = self._on_connect
        session = node.directory.find_session(name)
        if session is None:
            return
        self.cover(session, trace)
        if isinstance(session.connection, Connection):
            self.cover(session.connection, trace)
        actors = (subscriber.actor for subscriber in node.router.subscribers(name))
        self._in_slices((actor for actor in actors if actor is not None), trace, self.cover)

    def uncover(self, trace: Trace) -> None:
        """Remove all actors from a trace."""
        trace.over = True
        self._in_slices(iter(trace.actors), trace, self._release)
        trace.actors = set()
        if trace.client is not None:
            of_client = self.clients[trace.client]
            of_client.remove(trace)
            if not of_client:
                del self.clients[trace.client]
            trace.client = None
        if not self.clients:
            self._node.kernel.on_spawn = None
            self._admission.on_connect = None

    def _in_slices(
        self,
        actors: Iterator[LoopActor],
        trace: Trace,
        work: Callable[[LoopActor, Trace], None],
    ) -> None:
        """Process some actors now and the others soon, since a client may have thousands."""
        for number, actor in enumerate(actors, 1):
            work(actor, trace)
            if number == _SLICE:
                go_on = partial(self._in_slices, actors, trace, work)
                self._node.timers.after(_PAUSE, go_on)
                break

    def _release(self, actor: LoopActor, trace: Trace) -> None:
        traces = _traces_of(actor)
        if trace in traces:
            traces.remove(trace)
        if not traces:
            actor.observer = None

    def _on_spawn(self, actor: LoopActor) -> None:
        self.run_safely(self._cover_new, actor)

    def _cover_new(self, actor: LoopActor) -> None:
        if isinstance(actor, (Session, Subscription)):
            for trace in self.clients.get(client_of(actor) or "", ()):
                self.cover(actor, trace)
                self._add_line(actor, [trace], "starts", type(actor).__name__)

    def _on_connect(self, connection: Connection, packets: list[Any]) -> None:
        """Add a connection to traces as soon as its client is known."""
        traces = self.clients.get(connection.client_id or "")
        if traces:
            for trace in traces:
                self.cover(connection, trace)
            self.run_safely(self.on_took, traces, connection, packets, None)

    # Observations.

    def begin(self, traces: list[Trace], actor: LoopActor) -> None:
        """Observe the messages sent while an actor runs."""
        self.running, self._traces = actor, traces

    def end(self, _actor: LoopActor) -> None:
        """Stop observing sent messages."""
        self.run_safely(self._add_sent)
        self.running, self._traces = None, []

    def on_gets(self, traces: Sequence[Trace], actor: LoopActor, message: Any) -> None:
        """Show a message that an actor receives."""
        self._add_sent()
        if isinstance(message, ConnectionAttached) and isinstance(message.connection, Connection):
            for trace in traces:
                if trace.client is not None:
                    self.cover(message.connection, trace)
        if isinstance(message, Packets):
            self._gets_packets(actor, traces, message)
        elif not isinstance(message, (bytes, _ActorStop)):
            # Bytes are shown as packets, and a stop when the actor has stopped.
            self._add_message(actor, traces, "gets", message)

    def _gets_packets(self, actor: LoopActor, traces: Sequence[Trace], message: Packets) -> None:
        connection: object = message.connection
        others = [trace for trace in traces if connection not in trace.actors]
        about = {"connection": message.connection.actor_urn}
        for packet in message.packets:
            self._add_packets(actor, others, "gets", packet, message=about)

    def on_sends(self, target: LoopActor, message: Any) -> None:
        """Show a message that the running actor sends."""
        actor, previous = self.running, self._last_sent
        if actor is None or target.stopped:
            return
        others = [trace for trace in self._traces if target not in trace.actors]
        if previous is not None and previous.message is message and previous.traces == others:
            previous.more += 1
            return
        self._add_sent()
        if others:
            self._last_sent = _SentMessage(actor, others, message, target)

    def _add_sent(self) -> None:
        """Show the last message of the running actor: one line for all its receivers."""
        previous, self._last_sent = self._last_sent, None
        if previous is not None:
            to = {"to": previous.target.actor_urn, "to_client": _client(previous.target)}
            more = {"more": previous.more} if previous.more else {}
            self._add_message(
                previous.actor, previous.traces, "sends", previous.message, **to, **more
            )

    def on_gated(self, sink: OutputSink, data: bytes) -> None:
        """Show output passed to the gate; if the connection is traced, when it is sent."""
        actor = self.running
        if actor is None or not isinstance(sink, Connection):
            return
        self._add_sent()
        others = [trace for trace in self._traces if sink not in trace.actors]
        more = {"to": sink.actor_urn, "to_client": _client(sink)}
        self._add_bytes(actor, others, "sends", data, **more)

    def on_took(
        self,
        traces: Sequence[Trace],
        actor: LoopActor,
        packets: Sequence[Any],
        error: Exception | None,
    ) -> None:
        """Show the packets received on a connection."""
        for packet in packets:
            self._add_packets(actor, traces, "packet_in", packet)
        if error is not None:
            self._add_line(
                actor, traces, "packet_in", "violation", text=tracelines.short(str(error))
            )

    def on_wrote(self, traces: Sequence[Trace], actor: LoopActor, data: bytes) -> None:
        """Show the packets sent on a connection."""
        self._add_bytes(actor, traces, "packet_out", data)

    def on_closes(self, traces: Sequence[Trace], actor: LoopActor, reason: str) -> None:
        """Show that a connection ends."""
        self._add_line(actor, traces, "closes", tracelines.short(reason))

    def on_ended(self, traces: list[Trace], actor: LoopActor, error: Exception | None) -> None:
        """Show that an actor stopped or failed, and end the traces that cover only this actor."""
        text = None if error is None else tracelines.short(f"{type(error).__name__}: {error}")
        kind, what = ("ends", "stopped") if error is None else ("fails", text)
        self._add_line(actor, traces, kind, what)
        how = "stopped" if text is None else f"failed: {text}"
        for trace in list(traces):
            trace.actors.discard(actor)
            self._release(actor, trace)
            if trace.one is actor:
                self._ended(trace, End("actor", f"{actor.actor_urn} {how}"))

    def on_event(self, event: Event, at: Position, payloads: Sequence[bytes]) -> None:
        """Show an event in traces of the running actor, and of the event's session."""
        session = getattr(event, "session", None)
        traces = list(self._traces)
        if session in self.clients and not isinstance(event, SessionSnapshot):
            traces += [trace for trace in self.clients[session] if trace not in traces]
        if not traces:
            return
        self._add_sent()
        actor = self.running or self.session_actor(session)
        add_line(traces, partial(self.event_line, actor, event, at, payloads))

    def session_actor(self, name: str | None) -> LoopActor:
        """Return the actor of a session; the root if there is none."""
        return (self._node.directory.find_session(name) if name else None) or self._node.root

    def event_line(
        self,
        actor: LoopActor,
        event: Event,
        at: Position,
        payloads: Sequence[bytes] = (),
        topics: Topics | None = None,
    ) -> dict[str, Any]:
        """Return a line about an event; ``topics`` are those in memory unless given."""
        topics = topics or tracelines.CachedTopics(self._node.messages)
        now_ms = self._node.clock.time_ms()
        event = on_clock(event, self._node.clock.jumped_ms)
        about = tracelines.event_fields(event, at, now_ms, topics, payloads)
        return self.line(actor, "event", event.e, **about)

    # Lines.

    def line(self, actor: LoopActor, kind: str, what: str | None, **more: Any) -> dict[str, Any]:
        """Return a line."""
        return {
            "ms": self._node.clock.time_ms(),
            "actor": actor.actor_urn,
            "client": _client(actor),
            "kind": kind,
            "what": what,
            **more,
        }

    def _add_line(
        self, actor: LoopActor, traces: Sequence[Trace], kind: str, what: str | None, **more: Any
    ) -> None:
        add_line(traces, partial(self.line, actor, kind, what, **more))

    def _add_message(
        self, actor: LoopActor, traces: Sequence[Trace], kind: str, message: Any, **more: Any
    ) -> None:
        def line() -> dict[str, Any]:
            what, about = tracelines.message_object(message)
            return self.line(actor, kind, what, message=about, **more)

        add_line(traces, line)

    def _add_packets(
        self, actor: LoopActor, traces: Sequence[Trace], kind: str, packet: Any, **more: Any
    ) -> None:
        if traces:
            hides = self._node.names is not None
            lines = (
                self.line(actor, kind, fields["type"], packet=fields, **more)
                for fields in tracelines.packet_objects(packet, hides_names=hides)
            )
            add_lines(traces, tracelines.packet_count(packet), lines)

    def _add_bytes(
        self, actor: LoopActor, traces: Sequence[Trace], kind: str, data: bytes, **more: Any
    ) -> None:
        """Show the packets in ``data``, as many as the trace has room for."""
        if not traces:
            return
        room = min(AT_ONCE, max(trace.room() for trace in traces))
        at = 0
        v5 = getattr(actor, "properties", None) is not None
        for packet, stop in islice(read_server_packets(data, v5=v5), room):
            self._add_packets(actor, traces, kind, packet, **more)
            at = stop
        omitted = count_server_packets(data, at, _COUNTED)
        for trace in traces if omitted else ():
            trace.skip(omitted)


def _traces_of(actor: LoopActor) -> list[Trace]:
    return actor.observer.traces if isinstance(actor.observer, TracingObserver) else []


def _client(actor: LoopActor) -> str | None:
    name = client_of(actor)
    return None if name is None else tracelines.short(name)
