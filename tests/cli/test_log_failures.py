"""The errors of some of several logs: each names its log, and the worst one decides."""

import pytest

from cli.logs.log_failures import IncompleteLogs, LogFailures
from eventstore.errors import CorruptLog, CutMeanwhile, NatsUnavailable, NoLog, NotFound
from protocol.errors import FoldmqError

DAMAGED, MISSING, AWAY = CorruptLog(7, "has a wrong checksum"), NoLog("none"), NatsUnavailable("no")


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([AWAY, DAMAGED, MISSING], 65),
        ([AWAY, MISSING], 66),
        ([CutMeanwhile(3), AWAY], 69),
        ([NotFound("no"), CutMeanwhile(3)], 75),
    ],
)
def test_the_exit_code_is_that_of_the_worst_error(errors: list[FoldmqError], code: int) -> None:
    failures = LogFailures()
    for number, error in enumerate(errors):
        failures.errors[f"n-p{number}"] = error
    with pytest.raises(
        IncompleteLogs, match=f"incomplete, without {len(errors)} of 4 logs"
    ) as found:
        failures.check(4)
    assert found.value.exit_code == code
    with pytest.raises(type(min(errors, key=lambda one: one.exit_code != code))):
        failures.check(len(errors))


def fail() -> None:
    raise NoLog("there is none")


def test_an_error_names_its_log_once() -> None:
    failures = LogFailures()
    failures.check(2)
    with failures.of("n-p1"):
        fail()
    with pytest.raises(IncompleteLogs) as found:
        failures.check(2)
    assert str(found.value) == "incomplete, without 1 of 2 logs: log n-p1: there is none"
    with pytest.raises(NoLog, match=r"^log n-p1: there is none$"):
        failures.check(1)


def test_the_error_of_a_single_log_is_raised_as_it_is() -> None:
    failures = LogFailures()
    with pytest.raises(NoLog, match=r"^there is none$"), failures.of(""):
        fail()
    assert failures.errors == {}
