"""The errors of some of several logs: each names its log, and the worst one decides."""

import pytest

from cli.logs.logs import IncompleteLogs, Logs
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
    logs = Logs([f"n-p{number}" for number in range(4)])
    for number, error in enumerate(errors):
        logs.errors[f"n-p{number}"] = error
    with pytest.raises(
        IncompleteLogs, match=f"incomplete, without {len(errors)} of 4 logs"
    ) as found:
        logs.check_read()
    assert found.value.exit_code == code
    del logs.names[len(errors) :]
    with pytest.raises(type(min(errors, key=lambda one: one.exit_code != code))):
        logs.check_read()


def fail() -> None:
    raise NoLog("there is none")


def test_an_error_names_its_log_once() -> None:
    logs = Logs(["n-p0", "n-p1"])
    logs.check_read()
    with logs.of("n-p1"):
        fail()
    with pytest.raises(IncompleteLogs) as found:
        logs.check_read()
    assert str(found.value) == "incomplete, without 1 of 2 logs: log n-p1: there is none"
    logs.names.remove("n-p0")
    with pytest.raises(NoLog, match=r"^log n-p1: there is none$"):
        logs.check_read()


def test_the_error_of_a_single_log_is_raised_as_it_is() -> None:
    logs = Logs([""])
    with pytest.raises(NoLog, match=r"^there is none$"), logs.of(""):
        fail()
    assert logs.errors == {}
