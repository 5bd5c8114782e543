"""The jobs of ``foldmq spark rebuild``: every projection, rebuilt from the log alone."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from spark.jobs.retained_messages import retained
from spark.jobs.session_states import pending, queues, sessions, wills
from spark.jobs.state_start import StateStarts, state_starts
from spark.runtime.marked_errors import BadOption
from spark.tables.log import Log


def rebuild(log: Log, what: str) -> DataFrame:
    """Return the result of one of the :data:`JOBS` at the end of the log (see ``Log.until``).

    Raises CutOff if the state cannot be known there: a log that was cut begins with a checkpoint.
    """
    job = _JOBS.get(what)
    if job is None:
        raise BadOption(f"nothing is called {what!r:.60}: there are {', '.join(JOBS)}")
    pinned = log.pinned()
    pinned.fit_shuffles()
    return job(pinned, state_starts(pinned))


_JOBS: Final[Mapping[str, Callable[[Log, StateStarts], DataFrame]]] = {
    "sessions": sessions,
    "retained": lambda log, _begin: retained(log),
    "pending": pending,
    "queues": queues,
    "wills": wills,
}
JOBS: Final = tuple(_JOBS)
"""The available jobs."""
