"""The leadership check: confidence as tables of known facts and times."""

from typing import NamedTuple

import pytest

from cluster.leader import (
    CERTAIN_FOR,
    DOUBTFUL_FOR,
    STOOD_STILL,
    Confidence,
    LeadershipCheck,
)

TICK = 0.1
LITTLE = 0.01


class Look(NamedTuple):
    """This many checks, one in each tick, with the same answers."""

    looks: int
    durable: int = 7
    others: bool | None = True
    connected: bool = True


def looking(doubt: LeadershipCheck, *some: Look, begin: float = 0.0) -> tuple[Confidence, float]:
    """Return the last belief, and when that was."""
    now, belief = begin, Confidence.CERTAIN
    for looks, durable, others, connected in some:
        for _ in range(looks):
            now += TICK
            belief = doubt.look(now, durable=durable, others=others, connected=connected)
    return belief, now


LONG = round(CERTAIN_FOR / TICK) + 2
LONGER = LONG + round(DOUBTFUL_FOR / TICK) + 2


@pytest.mark.parametrize(
    ("some", "belief"),
    [
        ([Look(LONGER)], Confidence.CERTAIN),
        ([Look(LONGER, others=None)], Confidence.CERTAIN),
        ([Look(LONG - 4, others=False)], Confidence.CERTAIN),
        ([Look(LONG, others=False)], Confidence.DOUBTFUL),
        ([Look(LONGER, others=False)], Confidence.GIVEN_UP),
        ([Look(1, connected=False)], Confidence.DOUBTFUL),
        ([Look(LONGER, connected=False)], Confidence.GIVEN_UP),
        (
            [Look(8, others=False), Look(1, 8, others=False), Look(8, 8, others=False)],
            Confidence.CERTAIN,
        ),
        ([Look(LONG, others=False), Look(3)], Confidence.DOUBTFUL),
        ([Look(LONGER, others=False), Look(3)], Confidence.GIVEN_UP),
    ],
)
def test_decisions_of_a_leader(some: list[Look], belief: Confidence) -> None:
    assert looking(LeadershipCheck(0.0, 7), *some)[0] is belief


def test_a_record_sent_after_the_doubt_began_ends_it() -> None:
    doubt = LeadershipCheck(0.0, 7)
    _, now = looking(doubt, Look(LONGER, others=False))
    assert doubt.needs_proof
    doubt.needs(9)
    assert not doubt.needs_proof
    belief, now = looking(doubt, Look(3, durable=8, others=False), begin=now)
    assert belief is Confidence.GIVEN_UP
    belief, _ = looking(doubt, Look(1, durable=9, others=False), begin=now)
    assert belief is Confidence.CERTAIN


def test_a_process_that_stood_still_believes_nothing_that_waited_for_it() -> None:
    doubt = LeadershipCheck(0.0, 7)
    late = STOOD_STILL + LITTLE
    assert doubt.look(late, durable=8, others=True, connected=True) is Confidence.DOUBTFUL
    assert doubt.needs_proof
    doubt.needs(9)
    assert looking(doubt, Look(3, durable=8), begin=late)[0] is Confidence.DOUBTFUL
    assert looking(doubt, Look(1, durable=9), begin=late + 1)[0] is not Confidence.GIVEN_UP


def test_a_busy_process_is_not_one_that_stood_still() -> None:
    doubt = LeadershipCheck(0.0, 7)
    assert (
        doubt.look(STOOD_STILL - LITTLE, durable=7, others=True, connected=True)
        is Confidence.CERTAIN
    )
