"""The figures of ``foldmq top`` as text: rates, columns, curves and the summary."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.top.text import number_format
    from cli.top.text.columns import (
        ACTOR_SORTS,
        ACTORS,
        ACTORS_OF_LOGS,
        LOGS,
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
    from cli.top.text.line_charts import charts
    from cli.top.text.log_totals import totals_of_logs
    from cli.top.text.rate_history import History, waiting
    from cli.top.text.rates import Rates
    from cli.top.text.styled_text import Line, Role, cells, plain, wrapped
    from cli.top.text.summary_text import Frame, header, health, top_problems, top_summary
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "columns": (
                "ACTORS ACTORS_OF_LOGS ACTOR_SORTS LOGS Row TOPICS TOPIC_SORTS TopColumn as_glob "
                "cells_of fitting head holding sorted_topics topic_rows"
            ),
            "line_charts": "charts",
            "log_totals": "totals_of_logs",
            "number_format": "number_format",
            "rate_history": "History waiting",
            "rates": "Rates",
            "styled_text": "Line Role cells plain wrapped",
            "summary_text": "Frame header health top_summary top_problems",
        },
    )

__all__ = [
    "ACTORS",
    "ACTORS_OF_LOGS",
    "ACTOR_SORTS",
    "LOGS",
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
    "cells",
    "cells_of",
    "charts",
    "fitting",
    "head",
    "header",
    "health",
    "holding",
    "number_format",
    "plain",
    "sorted_topics",
    "top_problems",
    "top_summary",
    "topic_rows",
    "totals_of_logs",
    "waiting",
    "wrapped",
]
