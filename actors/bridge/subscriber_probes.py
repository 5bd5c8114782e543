"""Flows of messages to NATS: sent if there are subscribers.

A NATS server does not list subscribers to its clients, but it answers a request without subscribers
("503", no responders). So the first message of a subject is sent as a *probe*, with a reply subject
of the bridge, and the following ones wait until the server has answered or has processed the data
sent after the probe: one round trip. Without a subscriber the messages published before the probe
was sent are dropped, as the server would have done; otherwise the subject is *open* and messages
are sent without a probe for a second.

So a subject without subscribers costs one message every 3 ms, after ten probes every 50 ms and
after fifty every 250 ms, or 64 KiB, however many are published; and a message is dropped only if
there was no subscriber after it was published.

A client that knows the reply subject of a probe could answer like the server. So the subject cannot
be guessed, and a receiver of the probe gets it too late: the server's answer arrives first.
"""

from __future__ import annotations

import secrets
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from protocol.nats.headers import header_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.bridge.bridge import OrderedLink
    from actors.bridge.bridge_properties import PropertyWriter
    from actors.bridge.bridge_stats import BridgeStats
    from actors.bridge.to_nats import OutgoingMessages, TopicFlow
    from eventstore.format.positions import Position

_OPEN: Final = 1.0
"""Seconds for which a subject with subscribers is not probed again."""
_QUIET: Final[float] = 0.003
_LONG_QUIET: Final[float] = 0.05
_LONGEST_QUIET: Final[float] = 0.25
"""Seconds after a "no responders" answer in which messages are collected: the second after
``_OFTEN`` such answers without a subscriber in between, the third after ``_VERY_OFTEN``."""
_OFTEN: Final = 10
_VERY_OFTEN: Final = 50
_COLLECTED: Final = 64 * 1024
"""Bytes of messages that are not collected for longer."""
_TOKENS: Final = 256
"""Tokens that are made at once."""
_TOKEN_BYTES: Final = 8
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_ANSWERS: Final = b"a"
"""Placeholder for the name of a probe in reply subjects of other messages."""
_CHUNK: Final = 1024 * 1024
"""Approximate bytes that are rendered before they are written to the connection."""


def _tokens() -> Iterator[str]:
    """Yield unguessable names."""
    while True:
        digits, size = secrets.token_hex(_TOKENS * _TOKEN_BYTES), 2 * _TOKEN_BYTES
        yield from (digits[at : at + size] for at in range(0, len(digits), size))


class SubscriberProbes:
    """Sends messages, each on its flow.

    Output of :meth:`send` is written by :meth:`flush`, or earlier if it becomes large. ``later``
    calls a function after some seconds; ``token`` returns an unguessable name for each probe.
    """

    def __init__(
        self,
        wire: OrderedLink,
        node: str,
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        stats: BridgeStats,
        token: Callable[[], str] | None = None,
        properties: PropertyWriter | None = None,
    ) -> None:
        """``properties`` writes the properties of messages."""
        self._wire = wire
        self._node = node
        self._monotonic = monotonic
        self._later = later
        self._stats = stats
        self._token = token or _tokens().__next__
        self._properties = properties
        self._out: list[bytes] = []
        self._rendered = 0
        """Approximate bytes of unsent output."""
        self._broken = False
        """Whether the connection rejected output since the last flush."""
        self._probes: dict[bytes, TopicFlow] = {}
        self._new: list[bytes] = []
        self._gathering: dict[float, list[TopicFlow]] = {
            quiet: [] for quiet in (_QUIET, _LONG_QUIET, _LONGEST_QUIET)
        }
        """Flows of which messages are collected, by the time for which they are."""
        self.held = 0
        """Approximate size of the waiting messages when sent, including headers."""

    def send(self, flow: TopicFlow, leaving: OutgoingMessages) -> None:
        """Send the messages of a flow's topic, or keep them until a probe is answered."""
        if flow.covered is not None:
            self.held += flow.wait(leaving)
            return
        now = self._monotonic()
        if flow.open_until:
            asked = now >= flow.open_until
            if asked:
                # The following messages are also sent: a "no responders" answer closes the flow.
                flow.open_until = now + _OPEN
                self._ask(flow, leaving)
            self._write(flow, leaving, int(asked))
            return
        self.held += flow.wait(leaving)
        if now >= flow.quiet_until or flow.waiting_bytes > _COLLECTED:
            self._probe(flow)
        elif len(flow.waiting) == 1:
            self._gather(flow)

    def flush(self) -> bool:
        """Write the unsent output; return False if there is no connection and it is lost."""
        self._hand_over()
        if self._properties is not None:
            self._properties.end_batch()
        tokens, self._new = self._new, []
        if self._broken:
            self._broken = False
            return False
        if tokens:
            self._wire.fence(lambda: self._passed(tokens))
        return True

    def answered(self, subject: bytes, headers: bytes) -> None:
        """Handle an answer on a subject below the inbox."""
        if not headers.startswith(_NO_RESPONDERS):
            return  # there is a subscriber: the fence after the probe will confirm it
        token = subject[len(self._wire.inbox) :].partition(b".")[0]
        flow = self._probes.pop(token, None)
        if flow is None:
            return  # no probe, or already answered
        self._stats.sent -= 1
        if token != flow.token:
            return
        self.held -= flow.uncover()
        flow.open_until = 0.0
        flow.refused += 1
        flow.quiet_until = self._monotonic() + _quiet(flow)
        if flow.waiting:
            self._gather(flow)

    def oldest(self) -> Position | None:
        """Return the first position of messages that wait for answers; None if there is none."""
        positions = [leaving.since for flow in self._waiting() for leaving in flow.held]
        return min((since for since in positions if since), default=None)

    def lose(self) -> int:
        """Drop all waiting messages, as the connection is lost; return the number not recorded."""
        lost = 0
        for flow in self._waiting():
            held, _ = flow.release()
            lost += sum(flow.count(leaving) for leaving in held if not leaving.since)
        self._probes = {}
        for gathered in self._gathering.values():
            gathered.clear()
        self._out = []
        self._rendered = 0
        self._broken = False
        self._new = []
        self.held = 0
        return lost

    def _waiting(self) -> list[TopicFlow]:
        collected = (flow for gathered in self._gathering.values() for flow in gathered)
        return [*self._probes.values(), *(flow for flow in collected if not flow.covered)]

    def _gather(self, flow: TopicFlow) -> None:
        quiet = _quiet(flow)
        if not self._gathering[quiet]:
            self._later(quiet, partial(self._probe_gathered, quiet))
        self._gathering[quiet].append(flow)

    def _probe_gathered(self, quiet: float) -> None:
        gathered, self._gathering[quiet] = self._gathering[quiet], []
        for flow in gathered:
            if flow.waiting and flow.covered is None:
                self._probe(flow)
        self.flush()

    def _probe(self, flow: TopicFlow) -> None:
        """Send the first waiting message as a probe; it covers all waiting messages."""
        self._ask(flow, flow.cover()[0])

    def _ask(self, flow: TopicFlow, leaving: OutgoingMessages) -> None:
        """Send the first message of a flow's topic as a probe."""
        flow.token = token = self._token().encode()
        self._probes[token] = flow
        self._new.append(token)
        at = leaving.at(flow.raw)[0]
        ref = leaving.refs[at] if leaving.refs else None
        reply = b""
        if leaving.content.blocks:
            head, reply = self._head_with_properties(flow, leaving, at, token)
        else:
            head = header_block(flow.head(leaving, at, self._node), ref)
        reply = reply or self._wire.inbox + token
        self._stats.probes += 1
        self._write_one(flow, reply, head, leaving.content.payloads[at])

    def _passed(self, tokens: list[bytes]) -> None:
        """Send the messages after probes with subscribers: no answer came before this."""
        for token in tokens:
            flow = self._probes.pop(token, None)
            if flow is None or flow.covered is None or token != flow.token:
                continue
            flow.open_until = self._monotonic() + _OPEN
            flow.refused = 0
            held, size = flow.release()
            self.held -= size
            for number, leaving in enumerate(held):
                self._write(flow, leaving, int(number == 0))
        self.flush()

    def _hand_over(self) -> None:
        """Write rendered output, so that it is not buffered twice."""
        out, self._out = self._out, []
        self._rendered = 0
        if out and not self._broken:
            self._broken = not self._wire.write(out)

    def _write(self, flow: TopicFlow, leaving: OutgoingMessages, start: int) -> None:
        """Write the messages of a flow's topic, from the ``start``-th one on."""
        if leaving.content.blocks:
            self._write_with_properties(flow, leaving, start)
            return
        content, refs = leaving.content, leaving.refs
        chosen = leaving.at(flow.raw)[start:]
        if not chosen:
            return
        self._stats.sent += len(chosen)
        whole = not start and leaving.by_topic is None
        if not refs:
            constant = flow.head(leaving, chosen[0], self._node)
            payloads = content.payloads if whole else [content.payloads[at] for at in chosen]
            self._write_plain(flow.subject, constant, payloads)
        elif len(leaving.publishers) == 1:
            self._write_positions(flow, leaving, chosen)
        else:
            for _, run in groupby(chosen, leaving.publisher):
                self._write_positions(flow, leaving, [*run])

    def _write_positions(
        self, flow: TopicFlow, leaving: OutgoingMessages, chosen: Sequence[int]
    ) -> None:
        """Write messages of one client."""
        subject, constant = flow.subject, flow.head(leaving, chosen[0], self._node)
        payloads, refs = leaving.content.payloads, leaving.refs
        out, rendered = self._out, self._rendered
        for at in chosen:
            ref, payload = refs[at], payloads[at]
            head = header_block(constant, ref)
            line = b"HPUB %b %d %d\r\n%b" % (subject, len(head), len(head) + len(payload), head)
            out += (line, payload, b"\r\n")
            rendered += len(line) + len(payload)
            if rendered > _CHUNK:
                self._hand_over()
                out, rendered = self._out, 0
        self._rendered = rendered

    def _write_plain(self, subject: bytes, constant: bytes, payloads: Sequence[bytes]) -> None:
        out, rendered = self._out, self._rendered
        head = header_block(constant)
        each = len(subject) + len(head) + 20
        lines: dict[int, bytes] = {}
        for payload in payloads:
            size = len(payload)
            line = lines.get(size)
            if line is None:
                line = b"HPUB %b %d %d\r\n%b" % (subject, len(head), len(head) + size, head)
                lines[size] = line
            out += (line, payload, b"\r\n")
            rendered += size + each
            if rendered > _CHUNK:
                self._hand_over()
                out, rendered = self._out, 0
        self._rendered = rendered

    def _write_with_properties(
        self, flow: TopicFlow, leaving: OutgoingMessages, start: int
    ) -> None:
        payloads, expires, properties = leaving.content.payloads, leaving.expires, self._properties
        for at in leaving.at(flow.raw)[start:]:
            if expires and properties is not None and properties.is_expired(expires[at]):
                properties.expired(1)
                continue
            head, reply = self._head_with_properties(flow, leaving, at, _ANSWERS)
            self._write_one(flow, reply, head, payloads[at])

    def _write_one(self, flow: TopicFlow, reply: bytes, head: bytes, payload: bytes) -> None:
        """Write a message with a reply subject; empty: without one."""
        where = b"%b %b" % (flow.subject, reply) if reply else flow.subject
        line = b"HPUB %b %d %d\r\n%b" % (where, len(head), len(head) + len(payload), head)
        self._out += (line, payload, b"\r\n")
        self._stats.sent += 1
        self._rendered += len(line) + len(payload)
        if self._rendered > _CHUNK:
            self._hand_over()

    def _head_with_properties(
        self, flow: TopicFlow, leaving: OutgoingMessages, at: int, token: bytes
    ) -> tuple[bytes, bytes]:
        """Return the headers of a message, and its reply subject; empty: no answer requested."""
        constant = flow.head(leaving, at, self._node)
        ref = leaving.refs[at] if leaving.refs else None
        blocks, properties = leaving.content.blocks, self._properties
        if not blocks or not blocks[at] or properties is None:
            return header_block(constant, ref), b""
        expires = leaving.expires[at] if leaving.expires else 0
        head, sealed = properties.head(constant, ref, leaving.prefix, blocks[at], expires)
        if not sealed:
            return head, b""
        reply = b"%b%b.%b" % (self._wire.inbox, token, sealed)
        return head, reply if properties.fits_line(flow.subject, reply) else b""


def _quiet(flow: TopicFlow) -> float:
    if flow.refused < _OFTEN:
        return _QUIET
    return _LONG_QUIET if flow.refused < _VERY_OFTEN else _LONGEST_QUIET
