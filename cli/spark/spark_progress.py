"""Spark's progress on stderr, if it is a terminal."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_SHOW_AFTER = 0.5
_UPDATE_EVERY = 0.5


class Tasks:
    """Counts the tasks of all stages seen running."""

    def __init__(self, context: "SparkContext") -> None:
        self._tracker = context.statusTracker()
        self._known: dict[int, tuple[int, int]] = {}

    def __call__(self) -> tuple[int, int]:
        """Return the numbers of completed tasks and of all tasks."""
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError, OSError):
            active = set(self._tracker.getActiveStageIds())
            for stage in active:
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._known[stage] = info.numCompletedTasks, info.numTasks
            for stage in self._known.keys() - active:
                self._known[stage] = self._known[stage][1], self._known[stage][1]
        done = sum(done for done, _ in self._known.values())
        return done, sum(total for _, total in self._known.values())


def none() -> tuple[int, int]:
    """Return that there are no tasks."""
    return 0, 0


@contextlib.contextmanager
def busy(
    doing: str, tasks: Callable[[], tuple[int, int]] = none
) -> Iterator[Callable[[str], None]]:
    """Show the progress until the block ends; yields a function that sets the current step."""
    if not sys.stderr.isatty():
        yield lambda _doing: None
        return
    ended = threading.Event()
    says = [doing]
    watcher = threading.Thread(target=_watch, args=(says, tasks, ended), daemon=True)
    watcher.start()

    def tell(now: str) -> None:
        says[0] = now

    try:
        yield tell
    finally:
        ended.set()
        watcher.join(2 * _UPDATE_EVERY)


def _watch(says: list[str], tasks: Callable[[], tuple[int, int]], ended: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if ended.wait(_SHOW_AFTER):
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    # Other output goes through unchanged.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        shown = bar.add_task(says[0], total=None, tasks="")
        while not ended.wait(_UPDATE_EVERY):
            done, total = tasks()
            of = f"{done}/{total} tasks" if total else ""
            bar.update(shown, description=says[0], completed=done, total=total or None, tasks=of)
