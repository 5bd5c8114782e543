"""The errors of some of several logs, while a command goes on with the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cli.common import text
from eventstore.errors import naming_log
from protocol.errors import FoldmqError

_WORST_FIRST = (65, 66, 78, 73, 74, 69, 75)
"""Exit codes: damage and loss first, then what cannot be used, then what may work later."""


class IncompleteLogs(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Some of several logs could not be read; the exit code is that of the worst error."""

    def __init__(self, count: int, errors: Sequence[FoldmqError]) -> None:
        of = f"{len(errors)} of {text.count_of(count, 'log')}"
        super().__init__(f"incomplete, without {of}: {'; '.join(map(str, errors))}")
        self.exit_code = min(errors, key=_rank).exit_code


def _rank(error: FoldmqError) -> int:
    code = error.exit_code
    return _WORST_FIRST.index(code) if code in _WORST_FIRST else len(_WORST_FIRST)


class LogFailures:
    """The logs that could not be read, and why; each error names its log."""

    def __init__(self) -> None:
        self.errors: dict[str, FoldmqError] = {}

    @contextmanager
    def of(self, log: str) -> Iterator[None]:
        """Record the error of one of several logs; raise that of a single one, without a name."""
        try:
            with naming_log(log):
                yield
        except FoldmqError as error:
            if not log:
                raise
            self.errors[log] = error

    def check(self, count: int) -> None:
        """Raise IncompleteLogs if some of ``count`` logs failed; if all did, the worst error."""
        errors = list(self.errors.values())
        if errors and len(errors) == count:
            raise min(errors, key=_rank)
        if errors:
            raise IncompleteLogs(count, errors)
