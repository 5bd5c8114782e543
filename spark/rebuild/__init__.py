"""What the log says the state is: every projection, rebuilt from the log alone.

:func:`rebuild` does all of it for a log. The modules below have each job by itself:

``sessions``, ``queues``
    Folded by the broker's own fold, session by session (``folding``).
``retained``, ``pending``, ``wills``
    Native Spark SQL, the latter two over ``session_facts``.
``beginning``
    From where on the state of a log that was cut is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark.rebuild.beginning import beginnings
from spark.rebuild.pending import pending
from spark.rebuild.queues import queues
from spark.rebuild.retained import retained
from spark.rebuild.sessions import sessions
from spark.rebuild.wills import wills
from spark.runtime.marked_errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from spark.datasource.log import Log
    from spark.rebuild.beginning import Beginnings

__all__ = [
    "JOBS",
    "beginnings",
    "pending",
    "queues",
    "rebuild",
    "retained",
    "sessions",
    "wills",
]


def rebuild(log: Log, what: str) -> DataFrame:
    """Return one of the :data:`JOBS`, as of the end of the log (see ``Log.until``).

    Raises CutOff when the state cannot be known there: a log that was cut begins with a checkpoint.
    """
    job = _JOBS.get(what)
    if job is None:
        raise BadOption(f"nothing is called {what!r:.60}: there are {', '.join(JOBS)}")
    pinned = log.pinned()
    return job(pinned, beginnings(pinned))


_JOBS: Final[Mapping[str, Callable[[Log, Beginnings], DataFrame]]] = {
    "sessions": sessions,
    "retained": lambda log, _begin: retained(log),
    "pending": pending,
    "queues": queues,
    "wills": wills,
}
JOBS: Final = tuple(_JOBS)
"""What can be rebuilt."""
