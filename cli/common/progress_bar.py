"""A progress bar on stderr during long work, if stderr is a terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_SHOW_AFTER = 0.5
_UPDATE_EVERY = 0.1


@contextlib.contextmanager
def progress(what: str, total: int, unit: str = "records") -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of ``total`` records (or units) finished."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    with contextlib.ExitStack() as stack:
        yield _bar(stack, what, total, unit)


def _bar(stack: contextlib.ExitStack, what: str, total: int, unit: str) -> Callable[[int], None]:
    """Show the bar once the work has taken more than a moment."""
    started = time.monotonic()
    due = started + _SHOW_AFTER
    show: Callable[[int], None] | None = None

    def update(count: int) -> None:
        nonlocal due, show
        now = time.monotonic()
        if now < due:
            return
        due = now + _UPDATE_EVERY
        if show is None:
            show = _shown(stack, what, total, unit)
        show(count)

    return update


def _shown(stack: contextlib.ExitStack, what: str, total: int, unit: str) -> Callable[[int], None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = stack.enter_context(
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
    )
    task = bar.add_task(what, total=total)
    return lambda count: bar.update(task, completed=count)
