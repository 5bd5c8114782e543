"""The output of ``actors``, ``sessions``, ``retained`` and ``subscriptions``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.inspection import (
        actor_list,
        actor_page,
        actor_tree,
        node_list,
        receivers,
        retained,
        session_list,
        tail,
    )
    from cli.inspection.actor_list import ACTOR_TYPES, LOG_COLUMN, gather, log_broker, sort_key
    from cli.inspection.actor_page import (
        actor_lines,
        ask_session,
        broker_of,
        connection_of,
        connection_rates,
        find_actor,
    )
    from cli.inspection.receivers import denied_subscriptions, outcome_lines, outcome_text, preview
    from cli.inspection.session_list import clients_of, left_out, session_selection
    from cli.inspection.session_page import history_lines, session_lines
    from cli.inspection.status_totals import (
        add_free_space,
        added_up,
        dropped_by,
        memory_parts,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actor_list": "ACTOR_TYPES LOG_COLUMN actor_list gather log_broker sort_key",
            "actor_page": (
                "actor_lines actor_page ask_session broker_of connection_of connection_rates "
                "find_actor"
            ),
            "actor_tree": "actor_tree",
            "node_list": "node_list",
            "receivers": "denied_subscriptions outcome_lines outcome_text preview receivers",
            "retained": "retained",
            "session_list": "clients_of left_out session_list session_selection",
            "session_page": "history_lines session_lines",
            "status_totals": "add_free_space added_up dropped_by memory_parts",
            "tail": "tail",
        },
    )

__all__ = [
    "ACTOR_TYPES",
    "LOG_COLUMN",
    "actor_lines",
    "actor_list",
    "actor_page",
    "actor_tree",
    "add_free_space",
    "added_up",
    "ask_session",
    "broker_of",
    "clients_of",
    "connection_of",
    "connection_rates",
    "denied_subscriptions",
    "dropped_by",
    "find_actor",
    "gather",
    "history_lines",
    "left_out",
    "log_broker",
    "memory_parts",
    "node_list",
    "outcome_lines",
    "outcome_text",
    "preview",
    "receivers",
    "retained",
    "session_lines",
    "session_list",
    "session_selection",
    "sort_key",
    "tail",
]
