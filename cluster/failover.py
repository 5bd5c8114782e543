"""Takeover of a log: read to its end and append ``BrokerStarted`` behind it.

No lease and no clock is needed. Of two nodes that append behind the same record, one is refused.
Later appends of the replaced leader are refused too: they name a sequence that is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import decode_record, encode_record
from eventstore.log.conditional_append import Appended

if TYPE_CHECKING:
    from actors.kernel.clock import Clock
    from cluster.failure_detector import Cause
    from cluster.follower import Follower
    from eventstore.log.jetstream_log import EventLog


async def take_over(
    log: EventLog,
    follower: Follower,
    clock: Clock,
    *,
    name: str,
    node: str,
    software: str,
    cause: Cause,
    replaces: int | None = None,
) -> Appended:
    """Append the start of this node's leadership; the follower has folded it if it is stored.

    ``replaces`` is the epoch of the leader that is gone; None: any. REFUSED can also mean that
    another node has taken over from it although the record of this one is stored.

    ``name`` is the name of the log. Raises CorruptLog when the log ends before a record that this
    node, or a leader that it heard, knew to be stored, FellBehind, LogUnavailable.
    """
    tail = await log.tail()
    await follower.read_to(tail.sequence)
    if follower.sequence != tail.sequence:
        return Appended.REFUSED
    if replaces is not None and follower.state.epoch > replaces:
        return Appended.REFUSED
    behind = follower.end
    started = BrokerStarted(software, epoch=follower.state.epoch + 1, leader=node, cause=cause)
    data = encode_record(
        previous=behind.link,
        node=name,
        time_ms=max(clock.time_ms(), behind.steady_ms + behind.jumps.total_ms),
        events=[started],
        payloads=[],
        jumps=behind.jumps,
        record_format=1,
    )
    outcome = await log.append_behind(behind, data)
    if outcome is Appended.STORED:
        record = decode_record(behind.sequence + 1, data)
        await follower.add(record)
        if log.watermark is not None:
            log.watermark.note(record.sequence, record.link)
        if follower.sequence > record.sequence:
            # The acknowledgement was late: another node has taken over from this one meanwhile.
            return Appended.REFUSED
    return outcome
