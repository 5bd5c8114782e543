"""Runs a Spark job: finds the log, starts Spark, shows progress, and ends everything."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from cli.common import text
from cli.spark.log_location import Found, find, until
from cli.spark.spark_flags import MASTER, MEMORY, SparkFlags
from eventstore.errors import UsageError
from eventstore.reading.position_text import PointSpec
from spark.runtime.errors import NotWritable, OutOfMemory
from spark.runtime.session import is_submitted, kill_jvm, running_session
from spark.tables.discovery import find_logs
from spark.tables.log import Log
from spark.tables.options import SourceOptions
from spark.tables.planning import bytes_of, plan_ranges

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_Gathered = TypeVar("_Gathered")
_Result = TypeVar("_Result")


class Job:
    """The context of a job; ``start`` starts Spark."""

    def __init__(
        self, start: "Callable[[], SparkSession]", options: Mapping[str, str], found: Found
    ) -> None:
        self.log = Log(self.spark, options)
        self.found = found
        self._start = start
        self._session: SparkSession | None = None
        self._tasks: Tasks | None = None

    def spark(self) -> "SparkSession":
        """Return the session of Spark, which is started by the first call."""
        if self._session is None:
            self._session = self._start()
            self._tasks = Tasks(self._session.sparkContext)
        return self._session

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[Callable[[str], None]]:
        """Show Spark's progress; yields a function that sets the name of the current step."""
        with busy(doing, self._progress) as tell:
            yield tell

    def _progress(self) -> tuple[int, int]:
        return (0, 0) if self._tasks is None else self._tasks()


async def nothing(_found: Found) -> None:
    """Collect nothing before the job."""


def run_job(
    flags: SparkFlags,
    at: PointSpec | None,
    gather: Callable[[Found], Awaitable[_Gathered]],
    work: Callable[[Job, _Gathered], _Result],
    idle: Callable[[_Gathered], _Result | None] = lambda _gathered: None,
    *,
    when_needed: bool = False,
    too_large: str | None = None,
) -> _Result:
    """Find the log, collect data while it is open, run the job; return its result.

    ``at`` is the position up to which the log is read. Errors are found before Spark starts, if
    possible. If ``idle`` has a result, Spark is not started. ``when_needed``: Spark starts when the
    job first uses it; with ``too_large`` it never starts, and this is the error if it were needed.
    Everything that was started has ended when this returns or raises, even after Ctrl-C.
    """
    if is_submitted() and flags.of_session:
        raise UsageError(
            "spark-submit starts Spark: give master, memory and --conf to spark-submit"
        )
    with (
        # SIGINT too: asyncio would cancel the current task, which may suppress that.
        _ended_by(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        asyncio.Runner() as runner,
        contextlib.ExitStack() as after,
    ):
        started = contextlib.AsyncExitStack()
        after.callback(lambda: runner.run(started.aclose()))

        async def before() -> tuple[Found, dict[str, str], _Gathered]:
            async with contextlib.AsyncExitStack() as client:
                place = await find(started, client, flags)
                return place, await until(place, at), await gather(place)

        place, option, gathered = runner.run(before())
        result = idle(gathered)
        if result is not None:
            return result
        with contextlib.ExitStack() as session:
            options = {**place.options, **option}

            def start() -> "SparkSession":
                if too_large is not None:
                    raise OutOfMemory(too_large)
                spark = session.enter_context(_session(flags, _log_bytes(options)))
                # PySpark handles SIGINT from now on.
                session.enter_context(_ended_by(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
                return spark

            job = Job(start, options, place)
            # A program that spark-submit runs must start it, or YARN takes it for failed.
            if too_large is None and (is_submitted() or not when_needed):
                with busy("starting Spark"):
                    job.spark()
            return work(job, gathered)


def _log_bytes(log_options: Mapping[str, str]) -> int:
    """Return the approximate bytes of the records that a job may read."""
    options = SourceOptions.read(log_options)
    return sum(map(bytes_of, plan_ranges(find_logs(options), options, options.pushed)))


def _session(
    flags: SparkFlags, log_bytes: int
) -> contextlib.AbstractContextManager["SparkSession"]:
    return running_session(
        flags.master or MASTER,
        flags.memory or MEMORY,
        flags.conf,
        verbose=flags.source.verbose,
        log_bytes=log_bytes,
    )


def write_result(line: str) -> None:
    """Write a line of the result."""
    sys.stdout.write(line + "\n")


def check_html(file: Path) -> None:
    """Raise NotWritable or NoPlots before the job if the page cannot be drawn and written."""
    from spark.report.charts import require_matplotlib

    require_matplotlib()
    directory = file.parent
    if file.is_dir():
        raise NotWritable(f"--html {text.escaped(str(file))}: is a directory, give a file")
    if not directory.is_dir():
        raise _unwritable(file, os.strerror(errno.ENOENT))
    if not os.access(file if file.exists() else directory, os.W_OK):
        raise _unwritable(file, os.strerror(errno.EACCES))


def save_html(file: Path, content: str) -> None:
    """Write a page; raises NotWritable."""
    try:
        file.write_text(content, "utf-8")
    except OSError as error:
        raise _unwritable(file, error.strerror or "failed") from None


def _unwritable(file: Path, why: str) -> NotWritable:
    return NotWritable(f"cannot write {text.escaped(str(file))}: {why.lower()}")


@contextlib.contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """End the job on signals and clean up.

    The JVM is killed first, so that nothing waits until Spark has cancelled its jobs one by one;
    errors caused by that are not reported.
    """
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        kill_jvm()
        raise _ending(number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except BaseException:
        if came:
            raise _ending(came[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


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
        count = sum(count for count, _ in self._known.values())
        return count, sum(total for _, total in self._known.values())


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
            count, total = tasks()
            of = f"{count}/{total} tasks" if total else ""
            bar.update(shown, description=says[0], completed=count, total=total or None, tasks=of)
