"""The state of a session as JSON, and back: in the log's checkpoints and in the projections.

Default values are left out, and adjacent positions are written as runs
(``eventstore.format.positions``), so that the snapshot of an offline session takes about as many
bytes as its filters. A state that is too large for one event or message is split into parts: each
is an object with the same fields, and its lists continue those of the part before.

A field may be added with a default; any other change needs a new version of SessionSnapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from eventstore.format.positions import Position, Run, from_runs, to_runs
from projections.state.session import (
    InFlight,
    ReplayState,
    SessionState,
    SubscriptionState,
    Will,
)
from projections.state.waiting_queue import WaitingQueue
from protocol.mqtt.replay_filters import replayed_filter

Part: TypeAlias = dict[str, Any]

PART_BYTES = 256 * 1024
"""Approximate size of a part from which the next one is begun."""
_RUNS_AT_ONCE = 4096
_RUN_BYTES = 52
_ENTRIES_AT_ONCE = 4096
_ENTRY_BYTES = 32
RECEIVE_MAXIMUM = 65_535
"""The default Receive Maximum of a client."""
_TEXT_FACTOR = 6
"""Largest number of bytes that a character takes in JSON."""
_REPLAY_BYTES = 512
_LOG_BYTES = 96
"""Largest number of bytes of a replay without its filter, and of a log in it, with its name."""


def encode_session(state: SessionState) -> list[Part]:
    """Return a session's state as JSON objects: one, or several when it is large."""
    parts = [_plain(state)]
    size = _TEXT_FACTOR * len(state.user or "")
    if state.will is not None:
        will = state.will
        weight = _TEXT_FACTOR * len(will.topic)
        if size + weight > PART_BYTES:
            parts.append({})
            size = 0
        waits = [will.delay, will.grace] if will.grace else [will.delay] if will.delay else []
        parts[-1]["will"] = [will.topic, will.qos, will.retain, will.ref, *waits]
        size += weight
    size = _add_subscriptions(parts, size, state)
    for name, element, weight in _elements(state):
        if size + weight > PART_BYTES and size:
            parts.append({})
            size = 0
        size += weight
        parts[-1].setdefault(name, []).append(element)
    return parts


def _plain(state: SessionState) -> Part:
    """Return the fields that are not lists and differ from their default values."""
    part: Part = {"generation": state.generation}
    if state.connected:
        part["connected"] = True
    if state.clean:
        part["clean"] = True
    if state.level != 4:
        part["level"] = state.level
    if state.bridge:
        part["bridge"] = True
    if state.expiry is not None:
        part["expiry"] = state.expiry
    if state.user is not None:
        part["user"] = state.user
    if state.receive_maximum != RECEIVE_MAXIMUM:
        part["receive_maximum"] = state.receive_maximum
    if state.packet_maximum:
        part["packet_maximum"] = state.packet_maximum
    if state.closed_ms:
        part["closed_ms"] = state.closed_ms
    if state.last_pid:
        part["last_pid"] = state.last_pid
    if state.all_linked:
        part["tangled"] = True
    return part


def _add_subscriptions(parts: list[Part], size: int, state: SessionState) -> int:
    """Add the subscriptions, possibly thousands; return the size of the last part."""
    elements: list[list[Any]] = []
    for held in state.subscriptions.values():
        element: list[Any] = [held.filter, held.qos]
        if held.options or held.identifier:
            element += [held.active, held.options, held.identifier]
        elif not held.active:
            element.append(False)
        weight = _TEXT_FACTOR * len(held.filter) + 32
        if size + weight > PART_BYTES and size:
            if elements:
                parts[-1]["subscriptions"], elements = elements, []
            parts.append({})
            size = 0
        size += weight
        elements.append(element)
    if elements:
        parts[-1]["subscriptions"] = elements
    return size


def _elements(state: SessionState) -> Iterator[tuple[str, Any, int]]:
    """Yield (field, element of its list, approximate largest size in bytes)."""
    numbers: dict[int, int] = {}
    if state.waiting or state.inflight or state.releasing or state.replays:
        numbers = {id(held): number for number, held in enumerate(state.subscriptions.values())}
    for held in state.replays.values():
        if held.replay is not None:
            yield "replays", *_replay_element(numbers[id(held)], held.filter, held.replay)
    # Queues are ordered by the time at which they began to fill.
    for held in state.waiting.values():
        if held.queue is None:
            continue
        number, size, runs = numbers[id(held)], held.queued_bytes, held.queue.runs()
        for at in range(0, len(runs), _RUNS_AT_ONCE):
            chunk = runs[at : at + _RUNS_AT_ONCE]
            yield "queues", [number, size, chunk], _RUN_BYTES * len(chunk)
            size = 0
    for name, table in (("inflight", state.inflight), ("releasing", state.releasing)):
        for pids, sent in _alike(table):
            element = [
                numbers[id(sent[0].subscription)],
                sent[0].flags,
                sent[0].sent_ms,
                to_runs(pids),
                to_runs([delivery.ref for delivery in sent]),
            ]
            yield name, element, _ENTRY_BYTES * len(pids)
    received = list(state.inbound.items())
    for at in range(0, len(received), _ENTRIES_AT_ONCE):
        entries = received[at : at + _ENTRIES_AT_ONCE]
        element = [to_runs([pid for pid, _ in entries]), to_runs([ref for _, ref in entries])]
        yield "inbound", element, _ENTRY_BYTES * len(entries)


def _replay_element(number: int, topic_filter: str, replay: ReplayState) -> tuple[list[Any], int]:
    """Return the fields of a replay that differ from their default values, and the size."""
    values = ((name, getattr(replay, name)) for name in _REPLAY_FIELDS)
    plain = {name: value for name, value in values if value}
    if replay.topic_filter == replayed_filter(topic_filter):
        del plain["topic_filter"]
    size = _TEXT_FACTOR * len(plain.get("topic_filter", "")) + _REPLAY_BYTES
    logs = len(replay.start) + len(replay.until) + len(replay.through)
    return [number, plain], size + _LOG_BYTES * logs


_REPLAY_FIELDS = tuple(field.name for field in fields(ReplayState))


def _alike(table: dict[int, InFlight]) -> Iterator[tuple[list[int], list[InFlight]]]:
    """Yield runs of adjacent deliveries that differ only in packet identifier and position."""
    pids: list[int] = []
    sent: list[InFlight] = []
    for pid, entry in table.items():
        if sent:
            before = sent[-1]
            same = before.subscription is entry.subscription and before.flags == entry.flags
            if not same or before.sent_ms != entry.sent_ms or len(pids) >= _ENTRIES_AT_ONCE:
                yield pids, sent
                pids, sent = [], []
        pids.append(pid)
        sent.append(entry)
    if pids:
        yield pids, sent


def decode_session(session: str, parts: Iterable[Part]) -> SessionState:
    """Return the state that was passed to :func:`encode_session`.

    Raises ValueError, KeyError, TypeError or IndexError for parts that it did not write.
    """
    state = SessionState(session)
    held: list[SubscriptionState] = []
    for number, part in enumerate(parts):
        if not number:
            _decode_plain(state, part)
        if (will := part.get("will")) is not None:
            state.will = Will(*will)
        for element in part.get("subscriptions", ()):
            subscription = SubscriptionState(element[0], element[1], *element[2:])
            state.subscriptions[subscription.filter] = subscription
            held.append(subscription)
        for index, replay in part.get("replays", ()):
            name = held[index].filter
            values = {"topic_filter": replayed_filter(name), "start": {}, **replay}
            held[index].replay = ReplayState(**values)
            state.own_replays()[name] = held[index]
        for index, size, runs in part.get("queues", ()):
            _decode_queue(state, held[index], size, runs)
        _decode_sent(state.inflight, held, part.get("inflight", ()))
        if "releasing" in part:
            _decode_sent(state.own_releasing(), held, part["releasing"])
        for pids, refs in part.get("inbound", ()):
            state.own_inbound().update(zip(from_runs(pids), from_runs(refs), strict=True))
    return state


def _decode_plain(state: SessionState, part: Part) -> None:
    state.generation = part["generation"]
    state.connected = part.get("connected", False)
    state.clean = part.get("clean", False)
    state.level = part.get("level", 4)
    state.bridge = part.get("bridge", False)
    state.expiry = part.get("expiry")
    state.user = part.get("user")
    state.receive_maximum = part.get("receive_maximum", RECEIVE_MAXIMUM)
    state.packet_maximum = part.get("packet_maximum", 0)
    state.closed_ms = part.get("closed_ms", 0)
    state.last_pid = part.get("last_pid", 0)
    state.all_linked = part.get("tangled", False)


def _decode_queue(
    state: SessionState, held: SubscriptionState, size: int, runs: Sequence[Run]
) -> None:
    chunk = WaitingQueue(runs)
    if held.queue is None:
        held.queue = chunk
    else:
        held.queue.append(chunk)
    held.queued_bytes += size
    state.own_waiting()[held.filter] = held
    state.queued += len(chunk)
    state.queued_bytes += size


def _decode_sent(
    table: dict[int, InFlight], held: list[SubscriptionState], elements: Sequence[Any]
) -> None:
    for index, flags, sent_ms, pids, refs in elements:
        subscription = held[index]
        numbers = from_runs(pids)
        subscription.outstanding += len(numbers)
        for pid, ref in zip(numbers, from_runs(refs), strict=True):
            table[pid] = InFlight(ref, flags, subscription, sent_ms)


def reference_runs(state: SessionState) -> Iterator[Run]:
    """Yield the positions of all messages that a session still needs, including its will."""
    if state.will is not None:
        yield state.will.ref
    yield from state.inbound.values()
    for sent in state.inflight.values():
        yield sent.ref
    for held in state.waiting.values():
        if held.queue is not None:
            yield from held.queue.ref_runs()


def expand_runs(runs: Iterable[Run], before: Position) -> Iterator[Position]:
    """Yield the positions of runs that are before another position."""
    for run in runs:
        if isinstance(run, int):
            if run < before:
                yield run
        elif run[0] < before or run[2] < 0:
            yield from (ref for ref in from_runs([run]) if ref < before)


def oldest_reference(state: SessionState) -> Position | None:
    """Return the lowest of these positions, None when there is none."""
    refs = [sent.ref for sent in state.inflight.values()]
    refs += state.inbound.values()
    if state.will is not None:
        refs.append(state.will.ref)
    for held in state.waiting.values():
        oldest = held.queue.oldest() if held.queue is not None else None
        if oldest is not None:
            refs.append(oldest)
    return min(refs, default=None)
