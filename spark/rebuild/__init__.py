"""Rebuilds the state of a broker, every projection, from the log alone.

:func:`rebuild` runs one of the :data:`JOBS`. Sessions and queues are folded by the broker's own
fold, session by session; retained messages, packet identifiers and wills are native Spark SQL.
``state_starts`` returns the position from which the state of a cut log is known.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.rebuild.armed_wills import wills
    from spark.rebuild.arrow_batches import arrow_batches_of, ddl
    from spark.rebuild.folding import parse_event_json, report_contradictions, session_events
    from spark.rebuild.jobs import JOBS, rebuild
    from spark.rebuild.packet_ids import pending
    from spark.rebuild.retained_messages import retained
    from spark.rebuild.session_groups import SessionGroup, group_by_session, sorted_by_session
    from spark.rebuild.session_queues import queues
    from spark.rebuild.session_states import sessions
    from spark.rebuild.state_claim_comparison import SessionClaims, retained_otherwise
    from spark.rebuild.state_start import StateStarts, state_starts
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "armed_wills": "wills",
            "arrow_batches": "arrow_batches_of ddl",
            "state_start": "StateStarts state_starts",
            "state_claim_comparison": "SessionClaims retained_otherwise",
            "folding": "parse_event_json report_contradictions session_events",
            "jobs": "JOBS rebuild",
            "packet_ids": "pending",
            "retained_messages": "retained",
            "session_groups": "SessionGroup group_by_session sorted_by_session",
            "session_queues": "queues",
            "session_states": "sessions",
        },
    )

__all__ = [
    "JOBS",
    "SessionClaims",
    "SessionGroup",
    "StateStarts",
    "arrow_batches_of",
    "ddl",
    "group_by_session",
    "parse_event_json",
    "pending",
    "queues",
    "rebuild",
    "report_contradictions",
    "retained",
    "retained_otherwise",
    "session_events",
    "sessions",
    "sorted_by_session",
    "state_starts",
    "wills",
]
