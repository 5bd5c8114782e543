"""Messages on their way to NATS: sent if anybody there wants them.

A NATS server does not tell its clients who subscribed, but it answers a message that asks for a
reply and finds nobody ("503", no responders). So the first message of a subject is sent as a
*probe*, with a reply subject of ours, and what follows waits until the server has answered or has
processed what stands behind the probe: one round trip. If nobody was there, what had come before
the probe was sent is dropped, which is what the server would have done with it; if somebody was,
the subject is *open* and what follows is sent without asking, for a second.

So a subject that nobody listens to costs one message every few milliseconds, however many are
published; and a message is only ever dropped when, after it was published, nobody was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol.natsheaders import constant_part, header_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.bridge.stats import BridgeStats
    from eventstore.positions import Position

_OPEN = 1.0
"""Seconds for which a subject that somebody wanted is not asked about again."""
_QUIET = 0.003
"""Seconds after an answer that nobody is there in which what comes is gathered."""
_NO_RESPONDERS = b"NATS/1.0 503"


class Wire(Protocol):
    """The part of a NATS connection that messages leave by."""

    @property
    def inbox(self) -> bytes:
        """Prefix of the subjects that answers come to."""

    def write(self, data: list[bytes]) -> bool:
        """Send protocol lines; False: there is no connection."""

    def fence(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the server has processed all that was written."""


class Content(Protocol):
    """Messages in columns: a ``Publishes``, for one."""

    @property
    def topics(self) -> Sequence[bytes]:
        """Their topics."""

    @property
    def payloads(self) -> Sequence[bytes]:
        """Their payloads; asked for only when they are sent."""


class Leaving(NamedTuple):
    """Messages that took effect together, published by one client."""

    client: str
    prefix: str
    """What their subjects begin with."""
    qos: int
    retain: bool
    content: Content
    size: int
    """Bytes of the payloads, about."""
    refs: Sequence[Position] = ()
    """Positions in the log; empty where they are in none."""
    since: Position = 0
    """Position of the first entry with which they took effect; 0: they are not in the log."""
    through: Position = 0
    """Position of the last one."""


class Flow:
    """What is published on one topic, under one prefix."""

    __slots__ = (
        "_about",
        "_head",
        "covered",
        "open_until",
        "quiet_until",
        "raw",
        "subject",
        "token",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, raw: bytes, subject: bytes) -> None:
        self.topic = topic
        self.raw = raw
        self.subject = subject
        self._about: tuple[str, int, bool] | None = None
        self._head = b""
        self.open_until = 0.0
        """Monotonic time until which it is not asked again whether somebody wants it; 0: nobody
        is known to."""
        self.quiet_until = 0.0
        """Monotonic time until which what comes is gathered: nobody wanted it just now."""
        self.token = 0
        """Number of the last probe; answers to earlier ones say nothing of what it covers."""
        self.covered: list[Leaving] | None = None
        """What waits for the answer to the probe that is on its way: its first message of this
        topic is the probe. None: there is no probe."""
        self.waiting: list[Leaving] = []
        """What came after the probe was sent, or is gathered."""

    @property
    def busy(self) -> bool:
        """Whether something waits."""
        return self.covered is not None or bool(self.waiting)

    def head(self, leaving: Leaving, node: str) -> bytes:
        """Return what the headers of a client's messages have in common."""
        about = leaving.client, leaving.qos, leaving.retain
        if self._about != about:
            self._about = about
            client, qos, retain = about
            self._head = constant_part(self.topic, qos, retain=retain, client=client, node=node)
        return self._head


class Flows:
    """Sends messages, each on its flow.

    What :meth:`send` makes leaves with :meth:`flush`. ``later`` calls a function after some
    seconds.
    """

    def __init__(
        self,
        wire: Wire,
        node: str,
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        stats: BridgeStats,
    ) -> None:
        self._wire = wire
        self._node = node
        self._monotonic = monotonic
        self._later = later
        self._stats = stats
        self._out: list[bytes] = []
        self._probes: dict[int, Flow] = {}
        self._new: list[int] = []
        self._gathering: list[Flow] = []
        self._token = 0
        self.held = 0
        """Payload bytes that wait, about."""

    def send(self, flow: Flow, leaving: Leaving) -> None:
        """Send the messages of a flow's topic, or let them wait for the answer to a probe."""
        if flow.covered is not None:
            flow.waiting.append(leaving)
            self.held += leaving.size
            return
        now = self._monotonic()
        if flow.open_until:
            asked = now >= flow.open_until
            if asked:
                # What follows is sent all the same: an answer that nobody is there closes the flow.
                flow.open_until = now + _OPEN
                self._ask(flow, leaving)
            self._write(flow, leaving, int(asked))
            return
        self.held += leaving.size
        flow.waiting.append(leaving)
        if now >= flow.quiet_until:
            self._probe(flow)
        elif len(flow.waiting) == 1:
            if not self._gathering:
                self._later(_QUIET, self._probe_gathered)
            self._gathering.append(flow)

    def flush(self) -> bool:
        """Give the connection what is to be sent; False: there is none, and it is lost."""
        out, self._out = self._out, []
        tokens, self._new = self._new, []
        if out and not self._wire.write(out):
            return False
        if tokens:
            self._wire.fence(lambda: self._passed(tokens))
        return True

    def answered(self, subject: bytes, headers: bytes) -> None:
        """Take note of an answer that came to a subject below our inbox."""
        if not headers.startswith(_NO_RESPONDERS):
            return  # somebody is there: what is behind the probe will say so
        try:
            token = int(subject[len(self._wire.inbox) :])
        except ValueError:
            return
        flow = self._probes.pop(token, None)
        if flow is None:
            return
        self._stats.sent -= 1
        if token != flow.token:
            return
        for leaving in flow.covered or ():
            self.held -= leaving.size
        flow.covered = None
        flow.open_until = 0.0
        flow.quiet_until = self._monotonic() + _QUIET
        if flow.waiting:
            if not self._gathering:
                self._later(_QUIET, self._probe_gathered)
            self._gathering.append(flow)

    def oldest(self) -> Position | None:
        """Return the first position of what waits for answers; None: nothing of the log does."""
        found = [leaving.since for flow in self._waiting() for leaving in _held(flow)]
        return min((since for since in found if since), default=None)

    def lose(self) -> int:
        """Forget all that waits: the connection is gone; return how many were not in the log."""
        lost = 0
        for flow in self._waiting():
            for leaving in _held(flow):
                if not leaving.since:
                    lost += leaving.content.topics.count(flow.raw)
            flow.covered = None
            flow.waiting = []
        self._probes = {}
        self._gathering = []
        self._out = []
        self._new = []
        self.held = 0
        return lost

    def _waiting(self) -> list[Flow]:
        return [*self._probes.values(), *(flow for flow in self._gathering if not flow.covered)]

    def _probe_gathered(self) -> None:
        gathered, self._gathering = self._gathering, []
        for flow in gathered:
            if flow.waiting and flow.covered is None:
                self._probe(flow)
        self.flush()

    def _probe(self, flow: Flow) -> None:
        """Send the first message that waits, with a question; it covers all that waits."""
        flow.covered, flow.waiting = flow.waiting, []
        self._ask(flow, flow.covered[0])

    def _ask(self, flow: Flow, leaving: Leaving) -> None:
        """Send the first message of a flow's topic as a probe."""
        self._token += 1
        flow.token = token = self._token
        self._probes[token] = flow
        self._new.append(token)
        at = leaving.content.topics.index(flow.raw)
        ref = leaving.refs[at] if leaving.refs else None
        head = header_block(flow.head(leaving, self._node), ref)
        payload = leaving.content.payloads[at]
        self._out += (
            b"HPUB %b %b%d %d %d\r\n%b"
            % (flow.subject, self._wire.inbox, token, len(head), len(head) + len(payload), head),
            payload,
            b"\r\n",
        )
        self._stats.probes += 1
        self._stats.sent += 1

    def _passed(self, tokens: list[int]) -> None:
        """Send what stands behind probes that somebody wanted: no answer came before this."""
        for token in tokens:
            flow = self._probes.pop(token, None)
            if flow is None or flow.covered is None or token != flow.token:
                continue
            flow.open_until = self._monotonic() + _OPEN
            leavings, start = (*flow.covered, *flow.waiting), 1
            flow.covered = None
            flow.waiting = []
            for leaving in leavings:
                self.held -= leaving.size
                self._write(flow, leaving, start)
                start = 0
        self.flush()

    def _write(self, flow: Flow, leaving: Leaving, start: int) -> None:
        """Write the messages of a flow's topic, from the ``start``-th one on."""
        topics, payloads, refs = leaving.content.topics, leaving.content.payloads, leaving.refs
        if topics.count(flow.raw) < len(topics):
            chosen = [at for at, raw in enumerate(topics) if raw == flow.raw]
            payloads = [payloads[at] for at in chosen]
            refs = [refs[at] for at in chosen] if refs else ()
        if start:
            payloads, refs = payloads[start:], refs[start:]
        self._stats.sent += len(payloads)
        constant = flow.head(leaving, self._node)
        out, subject = self._out, flow.subject
        if refs:
            for ref, payload in zip(refs, payloads, strict=True):
                head = header_block(constant, ref)
                line = b"HPUB %b %d %d\r\n%b" % (subject, len(head), len(head) + len(payload), head)
                out += (line, payload, b"\r\n")
            return
        head = header_block(constant)
        lines: dict[int, bytes] = {}
        for payload in payloads:
            size = len(payload)
            found = lines.get(size)
            if found is None:
                found = b"HPUB %b %d %d\r\n%b" % (subject, len(head), len(head) + size, head)
                lines[size] = found
            out += (found, payload, b"\r\n")


def _held(flow: Flow) -> tuple[Leaving, ...]:
    return (*(flow.covered or ()), *flow.waiting)
