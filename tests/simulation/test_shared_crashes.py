"""Shared subscriptions under random crashes: no message is lost, or delivered to two members."""

import pytest

from simulation.loop import simulate
from simulation.shared_clients import Run


@pytest.mark.parametrize(
    "seed", [pytest.param(one, marks=[pytest.mark.long] if one >= 6 else []) for one in range(20)]
)
def test_no_message_is_lost_or_given_twice(seed: int) -> None:
    run = Run(seed)
    simulate(run.play)
    assert run.counts["acked"]
