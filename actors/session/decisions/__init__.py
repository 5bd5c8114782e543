"""Decisions of a session: pure functions from its state and a request to events.

They do not change the state or read a clock; the caller appends the events and applies them.
"""

from actors.session.decisions.acknowledgements import (
    PACKET_IDS,
    acked,
    completed,
    in_parts,
    received,
    refused,
    released,
    take_packet_ids,
    too_large,
)
from actors.session.decisions.delivery_preview import DeliveryPreview, full_queue, preview_delivery
from actors.session.decisions.queueing import (
    DeliveryDecision,
    DeliveryLimits,
    WaitingRun,
    deliver,
    dropped,
    dropped_unrecorded,
    goes_behind,
    next_waiting,
    queued,
    room,
    within,
)
from actors.session.decisions.sharing import (
    Assignment,
    Rows,
    assign,
    assign_by_topic,
    first_ones,
    refs_to_return,
    requeued,
    returned,
    shared_in_flight,
)
from actors.session.decisions.subscribing import (
    Grant,
    GrantedFilter,
    by_text,
    subscribe,
    unsubscribe,
)

__all__ = [
    "PACKET_IDS",
    "Assignment",
    "DeliveryDecision",
    "DeliveryLimits",
    "DeliveryPreview",
    "Grant",
    "GrantedFilter",
    "Rows",
    "WaitingRun",
    "acked",
    "assign",
    "assign_by_topic",
    "by_text",
    "completed",
    "deliver",
    "dropped",
    "dropped_unrecorded",
    "first_ones",
    "full_queue",
    "goes_behind",
    "in_parts",
    "next_waiting",
    "preview_delivery",
    "queued",
    "received",
    "refs_to_return",
    "refused",
    "released",
    "requeued",
    "returned",
    "room",
    "shared_in_flight",
    "subscribe",
    "take_packet_ids",
    "too_large",
    "unsubscribe",
    "within",
]
