"""Live traces of an actor, of the actors of a client, or of messages on some topics.

The caller requests a trace and names its token; lines are published on a subject derived from the
token, about twenty times a second. A trace ends when it is stopped, with its only actor, or when it
was not kept for 15 s. ``docs/nats-api.md`` describes the lines.

Without a trace there is no cost: see ``actors.inspection.recorder``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from actors.connection.admission import Admission
from actors.inspection.inspector import Handler, Refused, number, optional, shown, text
from actors.inspection.recorder import End, Trace, TraceRecorder
from actors.inspection.topic_trace import TopicTrace
from actors.session.node_context import NodeContext
from actors.session.session_messages import Publication
from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position
from eventstore.log.pending_record import OutputSink
from protocol.mqtt.topics import (
    MAX_TOPIC_BYTES,
    TopicError,
    is_reserved_filter,
    validate_topic_filter,
)

_log = structlog.get_logger("foldmq")

LEASE = 15.0
"""Seconds without a keep request after which a trace ends."""
MAX_TRACES = 8
DEFAULT_RATE, MAX_RATE = 500, 5000
"""Default and maximum number of lines per second."""
_TOKEN = re.compile(r"[A-Za-z0-9]{22,64}")
_SEND = 0.05
"""Seconds for which lines are collected before they are sent."""
_LOOK = 1.0
"""Seconds between checks for traces that are not kept."""
_STANDSTILL = 0.5
"""Seconds of suspension of the broker after which missing keep requests do not end a trace."""
_LISTED = 20
"""Maximum actors named in the answer."""


class Tracer:
    """The traces of one broker.

    ``publish(subject, data)`` sends lines. :meth:`start`, :meth:`keep` and :meth:`stop` answer
    requests and raise Refused.
    """

    def __init__(
        self, node: NodeContext, admission: Admission, publish: Callable[[str, bytes], None]
    ) -> None:
        self._node = node
        self._publish = publish
        self._recorder = TraceRecorder(node, admission, self._end)
        self._traces: dict[str, Trace] = {}
        self._topics: list[TopicTrace] = []
        self._sending = False
        self._looking = False

    def __len__(self) -> int:
        """Return the number of traces."""
        return len(self._traces)

    # Requests.

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers for the inspector, by endpoint."""
        return {"trace": self.start, "trace.keep": self.keep, "trace.stop": self.stop}

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a trace of an ``actor``, a ``client`` or a ``topic`` filter."""
        token = _token(request)
        rate = number(request, "rate", DEFAULT_RATE, MAX_RATE)
        if rate < 1:
            raise Refused(f"rate must be from 1 to {MAX_RATE} lines per second")
        targets = {key: optional(request, key) for key in ("actor", "client", "topic")}
        chosen = {key: value for key, value in targets.items() if value is not None}
        if len(chosen) != 1:
            raise Refused("one of actor, client and topic must be given")
        if token in self._traces:
            raise Refused("a trace with this token already exists")
        if len(self._traces) >= MAX_TRACES:
            raise Refused(f"{MAX_TRACES} traces are already running: no more are allowed")
        ((kind, target),) = chosen.items()
        subject = f"foldmq.trace.{self._node.options.node}.{token}"
        trace = Trace(token, subject, rate, self._node.clock.monotonic, self._arm)
        about = _STARTS[kind](self, trace, target)
        trace.deadline = self._node.clock.monotonic() + LEASE
        self._traces[token] = trace
        self._node.journal.observer = self
        self._look()
        return {"token": token, "lease_s": int(LEASE), "subject": subject, **about}

    def keep(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a trace for another 15 s."""
        trace = self._find(request)
        trace.deadline = self._node.clock.monotonic() + LEASE
        return {"token": trace.token, "lease_s": int(LEASE)}

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End a trace."""
        trace = self._find(request)
        self._end(trace, End("stopped", "stopped"))
        return {"token": trace.token}

    def close(self) -> None:
        """End all traces: the broker is shutting down."""
        for trace in list(self._traces.values()):
            self._end(trace, End("broker", "the broker is shutting down"))

    def _find(self, request: Mapping[str, Any]) -> Trace:
        trace = self._traces.get(_token(request))
        if trace is None:
            raise Refused("there is no such trace: it has ended")
        return trace

    def _start_actor(self, trace: Trace, urn: str) -> dict[str, Any]:
        actor = self._node.kernel.get(urn)
        if actor is None:
            raise Refused(f"there is no actor {shown(urn)}")
        trace.one = actor
        self._recorder.cover(actor, trace)
        return {"actors": [urn]}

    def _start_client(self, trace: Trace, name: str) -> dict[str, Any]:
        if not name or len(name.encode("utf-8", "replace")) > MAX_TOPIC_BYTES:
            raise Refused(f"client must be a client identifier, 1 to {MAX_TOPIC_BYTES} bytes")
        self._recorder.cover_client(name, trace)
        urns = sorted(actor.actor_urn for actor in trace.actors)
        session = self._node.directory.find_session(name)
        connected = session is not None and session.connection is not None
        return {
            "actors": urns[:_LISTED],
            "connected": connected,
            "known": name in self._node.state.sessions,
        }

    def _start_topic(self, trace: Trace, topic_filter: str) -> dict[str, Any]:
        try:
            validate_topic_filter(topic_filter)
        except TopicError as error:
            raise Refused(f"topic {shown(topic_filter)}: {error.reason}") from None
        if is_reserved_filter(topic_filter) or topic_filter.startswith("$SYS/"):
            raise Refused(f"topic {shown(topic_filter)}: no client publishes there")
        if not self._topics:
            self._node.add_observer(self)
        self._topics.append(TopicTrace(topic_filter, trace, self._node, self._recorder))
        return {"actors": []}

    # Input of traces.

    def appended(self, event: Event, at: Position, payloads: Sequence[bytes]) -> None:
        """Show an appended event in the traces that it concerns."""
        # Called for all events of all sessions: those without a trace must not be delayed.
        recorder = self._recorder
        if recorder.running is not None or getattr(event, "session", None) in recorder.clients:
            recorder.run_safely(recorder.on_event, event, at, payloads)
        for topic in self._topics:
            if type(event) in topic.events:
                recorder.run_safely(topic.on_event, event, at, payloads)

    def gated(self, sink: OutputSink, data: bytes) -> None:
        """Show output that the running traced actor passes to the gate."""
        recorder = self._recorder
        if recorder.running is not None:
            recorder.run_safely(recorder.on_gated, sink, data)

    def published(self, publication: Publication) -> None:
        """Show messages in the traces of topics that they match."""
        for topic in self._topics:
            self._recorder.run_safely(topic.on_publication, publication)

    # End of traces.

    def _end(self, trace: Trace, end: End) -> None:
        if self._traces.pop(trace.token, None) is None:
            return
        self._recorder.uncover(trace)
        self._topics = [topic for topic in self._topics if topic.trace is not trace]
        if not self._topics:
            self._node.remove_observer(self)
        if not self._traces:
            self._node.journal.observer = None
        self._send(trace, end)

    def _look(self) -> None:
        """Schedule the check for traces that are not kept."""
        if not self._looking:
            self._looking = True
            self._node.timers.after(_LOOK, self._end_unkept)

    def _end_unkept(self) -> None:
        self._looking = False
        timers, now = self._node.timers, self._node.clock.monotonic()
        for trace in list(self._traces.values()):
            if timers.lateness > _STANDSTILL:
                trace.deadline += timers.lateness
            if trace.deadline <= now:
                self._end(trace, End("lease", f"it was not kept for {LEASE:g} s"))
        if self._traces:
            self._look()

    # Sending.

    def _arm(self) -> None:
        if not self._sending:
            self._sending = True
            self._node.timers.after(_SEND, self._send_all)

    def _send_all(self) -> None:
        self._sending = False
        for trace in list(self._traces.values()):
            self._send(trace)

    def _send(self, trace: Trace, end: End | None = None) -> None:
        data = trace.take(end)
        if data is None:
            return
        try:
            self._publish(trace.subject, data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the actor's failure
            _log.warning("trace: lines are lost", error=str(error))


_STARTS: dict[str, Callable[[Tracer, Trace, str], dict[str, Any]]] = {
    "actor": Tracer._start_actor,  # noqa: SLF001
    "client": Tracer._start_client,  # noqa: SLF001
    "topic": Tracer._start_topic,  # noqa: SLF001
}


def _token(request: Mapping[str, Any]) -> str:
    token = text(request, "token")
    if not _TOKEN.fullmatch(token):
        raise Refused("token must be 22 to 64 letters and digits")
    return token
