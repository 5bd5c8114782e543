"""The figures of ``foldmq top`` as text: rates, columns, curves and the summary."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.top.text import figures
    from cli.top.text.columns import (
        ACTOR_SORTS,
        ACTORS,
        TOPIC_SORTS,
        TOPICS,
        Row,
        TopColumn,
        as_glob,
        cells_of,
        fitting,
        head,
        holding,
        sorted_topics,
        topic_rows,
    )
    from cli.top.text.curves import charts
    from cli.top.text.rate_history import History, waiting
    from cli.top.text.rates import Rates, between
    from cli.top.text.styled_text import Line, Role, cells, plain, wrapped
    from cli.top.text.summary_text import Frame, header, health, top_summary, troubles
else:
    __getattr__ = front_door(
        __name__,
        {
            "columns": (
                "ACTORS ACTOR_SORTS Row TOPICS TOPIC_SORTS TopColumn as_glob "
                "cells_of fitting head holding sorted_topics topic_rows"
            ),
            "curves": "charts",
            "figures": "figures",
            "rate_history": "History waiting",
            "rates": "Rates between",
            "styled_text": "Line Role cells plain wrapped",
            "summary_text": "Frame header health top_summary troubles",
        },
    )

__all__ = [
    "ACTORS",
    "ACTOR_SORTS",
    "TOPICS",
    "TOPIC_SORTS",
    "Frame",
    "History",
    "Line",
    "Rates",
    "Role",
    "Row",
    "TopColumn",
    "as_glob",
    "between",
    "cells",
    "cells_of",
    "charts",
    "figures",
    "fitting",
    "head",
    "header",
    "health",
    "holding",
    "plain",
    "sorted_topics",
    "top_summary",
    "topic_rows",
    "troubles",
    "waiting",
    "wrapped",
]
