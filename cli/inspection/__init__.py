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
    from cli.inspection.actor_list import LOG_COLUMN, gather, log_broker
    from cli.inspection.actor_page import (
        actor_lines,
        ask_session,
        broker_of,
        connection_of,
        connection_rates,
        find_actor,
    )
    from cli.inspection.receivers import outcome_lines, outcome_text, preview
    from cli.inspection.session_list import session_selection
    from cli.inspection.session_page import history_lines, session_lines
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actor_list": "LOG_COLUMN actor_list gather log_broker",
            "actor_page": (
                "actor_lines actor_page ask_session broker_of connection_of connection_rates "
                "find_actor"
            ),
            "actor_tree": "actor_tree",
            "node_list": "node_list",
            "receivers": "outcome_lines outcome_text preview receivers",
            "retained": "retained",
            "session_list": "session_selection session_list",
            "session_page": "history_lines session_lines",
            "tail": "tail",
        },
    )

__all__ = [
    "LOG_COLUMN",
    "actor_lines",
    "actor_list",
    "actor_page",
    "actor_tree",
    "ask_session",
    "broker_of",
    "connection_of",
    "connection_rates",
    "find_actor",
    "gather",
    "history_lines",
    "log_broker",
    "node_list",
    "outcome_lines",
    "outcome_text",
    "preview",
    "receivers",
    "retained",
    "session_lines",
    "session_list",
    "session_selection",
    "tail",
]
