"""How far Spark is, on stderr while it works on a terminal; nothing elsewhere."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from py4j.protocol import Py4JError
from pyspark import SparkContext

_SHOW_AFTER = 0.5
_UPDATE_EVERY = 0.5


class Busy:
    """Shows what Spark does, and how many of the tasks it knows of are done."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._known: dict[int, tuple[int, int]] = {}

    @contextlib.contextmanager
    def shown(self, doing: str) -> Iterator[Callable[[str], None]]:
        """Show progress until the block is left; gives what says what is done next."""
        if not sys.stderr.isatty():
            yield lambda _doing: None
            return
        ended = threading.Event()
        says = [doing]
        watcher = threading.Thread(target=self._watch, args=(says, ended), daemon=True)
        watcher.start()

        def tell(now: str) -> None:
            says[0] = now

        try:
            yield tell
        finally:
            ended.set()
            watcher.join(2 * _UPDATE_EVERY)

    def _watch(self, says: list[str], ended: threading.Event) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        if ended.wait(_SHOW_AFTER):
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
        )
        console = Console(stderr=True)
        # What is written meanwhile goes where it belongs.
        with Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as bar:
            task = bar.add_task(says[0], total=None)
            while not ended.wait(_UPDATE_EVERY):
                done, total = self._tasks()
                bar.update(task, description=says[0], completed=done, total=total or None)

    def _tasks(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many there are, of the stages known so far."""
        with contextlib.suppress(Py4JError, OSError):
            tracker = self._context.statusTracker()
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    self._known[stage] = info.numCompletedTasks, info.numTasks
            active = set(tracker.getActiveStageIds())
            for stage, (_, total) in self._known.items():
                if stage not in active:
                    self._known[stage] = total, total
        return sum(done for done, _ in self._known.values()), sum(
            total for _, total in self._known.values()
        )
