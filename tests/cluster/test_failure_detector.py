"""The failure detector: takeover decisions as tables of signs of life and times."""

import pytest

from cluster.failure_detector import (
    ASK_AGAIN,
    CONFIRM_AFTER,
    MAX_UNREACHABLE_AFTER,
    SILENT_AFTER,
    UNREACHABLE_AFTER,
    Cause,
    FailureDetector,
    Step,
)
from eventstore.nats.cluster_messages import LeaderAnswer

LITTLE = 0.01


def after(*told: tuple[float, LeaderAnswer | str]) -> FailureDetector:
    """Return a failure detector that received these, at these times."""
    suspicion = FailureDetector(0.0)
    for at, what in told:
        if what == "heard":
            suspicion.heard(at)
        elif what == "stopped":
            suspicion.stopped()
        elif what == "refused":
            suspicion.refused(at)
        elif what == "suspect":
            suspicion.suspect()
        elif what == "looked":
            suspicion.step(at)
        else:
            assert isinstance(what, LeaderAnswer)
            suspicion.answered(what, at)
    return suspicion


HERE, NONE, SILENT = LeaderAnswer.HERE, LeaderAnswer.NONE, LeaderAnswer.SILENT


@pytest.mark.parametrize(
    ("told", "now", "step"),
    [
        ((), 0.0, Step.FOLLOW),
        ((), SILENT_AFTER - LITTLE, Step.FOLLOW),
        ((), SILENT_AFTER + LITTLE, Step.ASK),
        (((5.0, "heard"),), 5.0 + SILENT_AFTER - LITTLE, Step.FOLLOW),
        (((5.0, "heard"),), 5.0 + SILENT_AFTER + LITTLE, Step.ASK),
        (((0.4, HERE),), 0.4 + SILENT_AFTER - LITTLE, Step.FOLLOW),
        (((0.4, NONE),), 0.4 + LITTLE, Step.FOLLOW),
        (((0.4, NONE),), 0.4 + ASK_AGAIN + LITTLE, Step.ASK),
        (((0.4, NONE), (0.6, NONE)), 0.6, Step.TAKE_OVER),
        (((0.4, NONE), (0.6, SILENT), (0.8, NONE)), 0.8, Step.FOLLOW),
        (((0.4, NONE), (0.5, "heard"), (0.9, NONE)), 0.9 + LITTLE, Step.FOLLOW),
        (((0.4, NONE), (0.6, NONE), (0.7, "heard")), 0.7, Step.FOLLOW),
        (((0.6, SILENT), (1.0, SILENT)), UNREACHABLE_AFTER - LITTLE, Step.ASK),
        (((0.6, SILENT), (1.0, SILENT)), UNREACHABLE_AFTER + LITTLE, Step.TAKE_OVER),
        (((0.1, "stopped"),), 0.1, Step.TAKE_OVER),
        (((0.1, "stopped"), (0.2, "heard")), 0.2, Step.FOLLOW),
        (((0.1, "stopped"), (0.2, HERE)), 0.2, Step.TAKE_OVER),
        (((0.1, "heard"), (0.1, "suspect")), 0.1, Step.ASK),
        (((0.1, "suspect"), (0.11, "heard")), 0.11, Step.ASK),
        (((0.1, "suspect"), (0.11, HERE)), 0.11 + ASK_AGAIN + LITTLE, Step.FOLLOW),
        (((0.1, "suspect"), (0.11, NONE)), 0.11 + LITTLE, Step.FOLLOW),
        (((0.1, "suspect"), (0.11, NONE)), 0.11 + CONFIRM_AFTER + LITTLE, Step.ASK),
        (((0.1, "suspect"), (0.11, NONE), (0.2, NONE)), 0.2, Step.TAKE_OVER),
        (((0.1, "suspect"), (0.2, SILENT)), 0.2 + LITTLE, Step.FOLLOW),
        (((1.0, "refused"),), 1.0 + UNREACHABLE_AFTER + LITTLE, Step.ASK),
        (((1.0, "refused"),), 1.0 + 2 * UNREACHABLE_AFTER + LITTLE, Step.TAKE_OVER),
    ],
)
def test_decisions_of_a_follower(
    told: tuple[tuple[float, LeaderAnswer | str], ...], now: float, step: Step
) -> None:
    assert after(*told).step(now) is step


@pytest.mark.parametrize(
    ("told", "now", "cause"),
    [
        (((0.4, NONE), (0.6, NONE)), 0.6, Cause.DEAD),
        (((0.4, SILENT),), UNREACHABLE_AFTER, Cause.SILENT),
        (((0.4, "stopped"),), 0.4, Cause.STOPPED),
        (((0.4, NONE),), 0.5, None),
        (((0.4, SILENT), (2.5, "looked"), (2.6, "heard")), 2.6, None),
    ],
)
def test_why_another_leader_is_needed(
    told: tuple[tuple[float, LeaderAnswer | str], ...], now: float, cause: Cause | None
) -> None:
    suspicion = after(*told)
    suspicion.step(now)
    assert suspicion.cause is cause


def test_a_refusal_makes_more_patient_up_to_a_bound() -> None:
    suspicion = FailureDetector(0.0)
    for _ in range(10):
        suspicion.refused(0.0)
    assert suspicion.step(MAX_UNREACHABLE_AFTER - LITTLE) is Step.ASK
    assert suspicion.step(MAX_UNREACHABLE_AFTER + LITTLE) is Step.TAKE_OVER


def test_an_answer_makes_as_impatient_as_before() -> None:
    suspicion = after((0.0, "refused"), (0.0, HERE))
    assert suspicion.step(UNREACHABLE_AFTER + LITTLE) is Step.TAKE_OVER
