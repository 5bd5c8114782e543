"""Random clients, random faults, random crashes: acknowledged messages arrive, once, in order.

A failure names its seed; the same seed gives the same run:
``python tests/simulation/run.py --seed N``. ``FOLDMQ_SEEDS=5000`` runs more of them here.
"""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from simulation.attackers import ATTACKERS
from simulation.chaos import Outcome, run
from simulation.faults import Append, Ask
from simulation.nodes import NodesWorld
from simulation.simulated_standby import StandbyWorld
from simulation.world import World

SEEDS = int(os.environ.get("FOLDMQ_SEEDS", "10"))
AT_EVERY_SAVE = 4
"""``make check`` runs this many of them, too."""
FAILED_BEFORE = (3064,)
"""Seeds that found a defect."""
NODES_SEEDS = max(16, SEEDS // 2)
"""Runs with three nodes; 140 are enough for what must have happened in some of them."""


def marks_of(seed: int) -> list[pytest.MarkDecorator]:
    """One run of each kind is made as plain Python, too."""
    return [pytest.mark.slow] if seed >= AT_EVERY_SAVE else [pytest.mark.twice] if not seed else []


_RUN = Path(__file__).parent / "run.py"


@cache
def outcome(seed: int, world: type[World]) -> Outcome:
    """What a run was like; it runs once, for all tests that ask for it."""
    return run(seed, world)


def counts(seeds: int, world: type[World]) -> Counter[str]:
    """Counts of what happened in this many runs."""
    return sum((outcome(seed, world).counts for seed in range(seeds)), Counter())


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=marks_of(seed)) for seed in (*range(SEEDS), *FAILED_BEFORE)],
)
def test_a_random_run_keeps_every_guarantee(seed: int) -> None:
    outcome(seed, World)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=marks_of(seed)) for seed in range(max(AT_EVERY_SAVE, SEEDS // 4))],
)
def test_a_random_run_with_a_standby_keeps_every_guarantee(seed: int) -> None:
    outcome(seed, StandbyWorld)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=marks_of(seed)) for seed in range(NODES_SEEDS)],
)
def test_a_random_run_with_three_nodes_keeps_every_guarantee(seed: int) -> None:
    """They are killed and cut off; another one takes over while the old one still believes."""
    outcome(seed, NodesWorld)


@pytest.mark.long
def test_everything_happened_to_a_leader() -> None:
    seen = counts(max(140, NODES_SEEDS), NodesWorld)
    wanted = (
        "crash", "leader cut off", "replaced while it served", "Fenced", "Replaced",
        "client of a node that follows", "passed on", "connects while no node serves",
        "cut off from the other nodes", "clients of a node that follows lost",
    )  # fmt: skip
    assert not [what for what in wanted if not seen[what]]


@pytest.mark.long
def test_every_fault_happened() -> None:
    seen = counts(max(60, SEEDS), World)
    wanted = [fate.value for fate in (*Append, *Ask)]
    wanted += [
        "crash", "crash while it recovers", "stopped", "killed while it stops",
        "killed before an append", "killed before bytes are sent",
        "killed stored, not acknowledged",
        "connection to NATS lost", "JetStream stands still", "client stops reading",
        "take over", "leave", "drop", "subscribe", "unsubscribe", "burst", "withheld",
        "live state compared with the log after a restart",
    ]  # fmt: skip
    wanted += [f"attack: {attacker.kind}" for attacker in ATTACKERS]
    wanted += [
        f"between parts: {what}"
        for what in (
            "take over or connect", "drop", "leave", "publish", "unsubscribe", "operator",
            "other permissions",
        )
    ]  # fmt: skip
    assert not [what for what in wanted if not seen[what]]


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = outcome(7, World), run(7), outcome(8, World)
    assert first == second
    assert (first.log, first.transcripts) != (other.log, other.transcripts)


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(one, marks=pytest.mark.long) for one in (13, 15))]
)
@pytest.mark.slow
@pytest.mark.system
def test_the_same_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    here = outcome(seed, World)
    found = subprocess.run(
        [sys.executable, str(_RUN), "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"log {here.log}" in found
    assert f"transcripts {here.transcripts}" in found
