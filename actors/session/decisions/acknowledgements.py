"""Decisions about acknowledgements and the packet identifiers that they refer to."""

from collections.abc import Sequence
from typing import TypeVar

from eventstore.format.events import Acked, Completed, Received, Refused, Released
from eventstore.format.positions import Run, to_runs
from eventstore.format.record_size import ENTRIES_AT_ONCE
from projections.state.session import InFlight, SessionState
from projections.state.waiting_queue import QOS_MASK

T = TypeVar("T")

PACKET_IDS = 65_535
"""Number of packet identifiers of a session, 1 to 65,535 [MQTT-2.3.1-1]."""


def take_packet_ids(state: SessionState, count: int) -> list[int]:
    """Return ``count`` unused packet identifiers in ascending cyclic order.

    Assignment continues after the last assigned identifier and wraps around to 1 after 65,535
    [MQTT-2.3.1-2, MQTT-2.3.1-4]. The caller ensures that ``count`` identifiers are free.
    """
    first = state.last_pid + 1
    inflight, releasing = state.inflight, state.releasing
    if first + count - 1 <= PACKET_IDS:
        candidates = range(first, first + count)
        if inflight.keys().isdisjoint(candidates) and releasing.keys().isdisjoint(candidates):
            return list(candidates)
    packet_ids: list[int] = []
    pid = state.last_pid
    while len(packet_ids) < count:
        pid = pid % PACKET_IDS + 1
        if pid not in inflight and pid not in releasing:
            packet_ids.append(pid)
    return packet_ids


def acked(
    state: SessionState, packet_ids: Sequence[int], reasons: Sequence[int] = ()
) -> Acked | None:
    """Decide on PUBACKs: they complete the QoS 1 deliveries that they refer to; others are ignored.

    ``reasons`` are the reason codes of MQTT 5; empty if all are 0.
    """
    pids = _known(state.inflight, packet_ids, 1)
    if not pids:
        return None
    return Acked(state.session, to_runs(pids), reasons=_reasons_of(pids, packet_ids, reasons))


def received(
    state: SessionState, packet_ids: Sequence[int], reasons: Sequence[int] = ()
) -> Received | None:
    """Decide on PUBRECs: the QoS 2 deliveries that they refer to await PUBCOMP from now on.

    ``reasons`` are given where no PUBREC came: the broker completes deliveries by itself.
    """
    pids = _known(state.inflight, packet_ids, 2)
    if not pids:
        return None
    return Received(state.session, to_runs(pids), reasons=_reasons_of(pids, packet_ids, reasons))


def refused(
    state: SessionState, packet_ids: Sequence[int], reasons: Sequence[int]
) -> Refused | None:
    """Decide on PUBRECs with an error (MQTT 5): the QoS 2 deliveries end."""
    pids = _known(state.inflight, packet_ids, 2)
    if not pids:
        return None
    return Refused(state.session, to_runs(pids), [*_reasons_of(pids, packet_ids, reasons)])


def completed(
    state: SessionState, packet_ids: Sequence[int], reasons: Sequence[int] = ()
) -> Completed | None:
    """Decide on PUBCOMPs: those that answer a PUBREL complete their delivery."""
    pids = _known(state.releasing, packet_ids, 2)
    if not pids:
        return None
    return Completed(state.session, to_runs(pids), reasons=_reasons_of(pids, packet_ids, reasons))


def _reasons_of(
    pids: Sequence[int], packet_ids: Sequence[int], reasons: Sequence[int]
) -> Sequence[Run]:
    """Return the column of reason codes of the known packet identifiers."""
    if not any(reasons):
        return ()
    of = dict(zip(packet_ids, reasons, strict=True))
    return to_runs([of[pid] for pid in pids])


def _known(table: dict[int, InFlight], packet_ids: Sequence[int], qos: int) -> list[int]:
    pids: list[int] = []
    for pid in dict.fromkeys(packet_ids):
        sent = table.get(pid)
        if sent is not None and sent[1] & QOS_MASK == qos:
            pids.append(pid)
    return pids


def in_parts(values: Sequence[T]) -> list[Sequence[T]]:
    """Return values in parts that each fit into one event."""
    if len(values) <= ENTRIES_AT_ONCE:
        return [values]
    starts = range(0, len(values), ENTRIES_AT_ONCE)
    return [values[at : at + ENTRIES_AT_ONCE] for at in starts]


def released(state: SessionState, packet_ids: Sequence[int]) -> list[Released]:
    """Decide on PUBRELs: the messages that wait for them take effect, in this order.

    The caller also acknowledges unknown packet identifiers, which release nothing: their message
    was released before [MQTT-4.3.3-2].
    """
    inbound = state.inbound
    pids = [pid for pid in dict.fromkeys(packet_ids) if pid in inbound]
    return [
        Released(state.session, to_runs(part), refs=to_runs([inbound[pid] for pid in part]))
        for part in in_parts(pids)
        if part
    ]
