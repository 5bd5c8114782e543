"""The state that a log describes, as pure folds, and its snapshots.

``NodeState`` folds a whole log: its sessions and the retained index. ``SessionFold`` folds one
session from that session's events alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projections.state.digests import (
        NO_DIGEST,
        digest,
        pending_of,
        retained_digest,
        session_digest,
        session_texts,
    )
    from projections.state.filter_links import linked
    from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
    from projections.state.node_state import Checkpoint, NodeState
    from projections.state.retained import RetainedIndex, RetainedMessage, repeated_messages
    from projections.state.session import (
        EVOLVE,
        LOST,
        SHARED_HOME,
        SHARED_PART,
        InFlight,
        SessionState,
        SubscriptionState,
        Will,
        evolve,
    )
    from projections.state.session_table import (
        OutstandingTotals,
        bound_of,
        frozen_from,
        is_freezable,
        text_of,
    )
    from projections.state.single_session import SessionFold, split_area
    from projections.state.snapshot import (
        Part,
        decode_session,
        encode_session,
        expand_runs,
        reference_runs,
    )
    from projections.state.waiting_queue import (
        FLAG_BITS,
        QOS_MASK,
        RAP_FLAG,
        RETAIN_FLAG,
        WaitingQueue,
        waiting,
    )

__all__ = [
    "EVOLVE",
    "FLAG_BITS",
    "INCONSISTENCIES",
    "LOST",
    "NO_DIGEST",
    "QOS_MASK",
    "RAP_FLAG",
    "RETAIN_FLAG",
    "SHARED_HOME",
    "SHARED_PART",
    "Checkpoint",
    "InFlight",
    "NodeState",
    "OutstandingTotals",
    "Part",
    "RetainedIndex",
    "RetainedMessage",
    "SessionFold",
    "SessionState",
    "SubscriptionState",
    "WaitingQueue",
    "Will",
    "bound_of",
    "decode_session",
    "digest",
    "encode_session",
    "evolve",
    "expand_runs",
    "frozen_from",
    "inconsistency",
    "is_freezable",
    "linked",
    "pending_of",
    "reference_runs",
    "repeated_messages",
    "retained_digest",
    "session_digest",
    "session_texts",
    "split_area",
    "text_of",
    "waiting",
]

_MODULE_OF = {
    "NO_DIGEST": "digests",
    "digest": "digests",
    "pending_of": "digests",
    "retained_digest": "digests",
    "session_digest": "digests",
    "session_texts": "digests",
    "linked": "filter_links",
    "INCONSISTENCIES": "inconsistent_events",
    "inconsistency": "inconsistent_events",
    "Checkpoint": "node_state",
    "NodeState": "node_state",
    "RetainedIndex": "retained",
    "RetainedMessage": "retained",
    "repeated_messages": "retained",
    "EVOLVE": "session",
    "LOST": "session",
    "SHARED_HOME": "session",
    "SHARED_PART": "session",
    "InFlight": "session",
    "SessionState": "session",
    "SubscriptionState": "session",
    "Will": "session",
    "evolve": "session",
    "OutstandingTotals": "session_table",
    "bound_of": "session_table",
    "frozen_from": "session_table",
    "is_freezable": "session_table",
    "text_of": "session_table",
    "SessionFold": "single_session",
    "split_area": "single_session",
    "Part": "snapshot",
    "decode_session": "snapshot",
    "encode_session": "snapshot",
    "expand_runs": "snapshot",
    "reference_runs": "snapshot",
    "FLAG_BITS": "waiting_queue",
    "QOS_MASK": "waiting_queue",
    "RAP_FLAG": "waiting_queue",
    "RETAIN_FLAG": "waiting_queue",
    "WaitingQueue": "waiting_queue",
    "waiting": "waiting_queue",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module of a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
