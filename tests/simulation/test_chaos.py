"""Random clients, random faults, random crashes: acknowledged messages arrive, once, in order.

A failure names its seed; the same seed gives the same run:
``python tests/simulation/run.py --seed N``. ``FOLDMQ_SEEDS=5000`` runs more of them here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.attackers import ATTACKERS
from simulation.chaos import run
from simulation.faults import Append, Ask
from simulation.nodes import NodesWorld
from simulation.simulated_standby import StandbyWorld

SEEDS = int(os.environ.get("FOLDMQ_SEEDS", "60"))
AT_EVERY_SAVE = 4
"""So many of them are run by ``make check``, too."""
_RUN = Path(__file__).parent / "run.py"

_seen: Counter[str] = Counter()
_seen_of_nodes: Counter[str] = Counter()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= AT_EVERY_SAVE else [])
        for seed in range(SEEDS)
    ],
)
def test_a_random_run_keeps_every_promise(seed: int) -> None:
    _seen.update(run(seed).counts)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= AT_EVERY_SAVE else [])
        for seed in range(max(AT_EVERY_SAVE, SEEDS // 4))
    ],
)
def test_a_random_run_with_a_standby_keeps_every_promise(seed: int) -> None:
    run(seed, StandbyWorld)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= AT_EVERY_SAVE else [])
        for seed in range(max(AT_EVERY_SAVE, SEEDS // 4))
    ],
)
def test_a_random_run_with_three_nodes_keeps_every_promise(seed: int) -> None:
    """They are killed and cut off; another one takes over while the old one still believes."""
    _seen_of_nodes.update(run(seed, NodesWorld).counts)


@pytest.mark.slow
def test_everything_happened_to_a_leader() -> None:
    seen = _seen_of_nodes
    if SEEDS < 100 or not seen:
        seen = sum((run(seed, NodesWorld).counts for seed in range(15)), Counter())
    wanted = (
        "crash", "leader cut off", "replaced while it served", "Fenced", "Replaced",
        "client of a node that follows", "passed on", "connects while no node serves",
        "cut off from the other nodes", "clients of a node that follows lost",
    )  # fmt: skip
    assert not [what for what in wanted if not seen[what]]


@pytest.mark.slow
def test_every_fault_happened() -> None:
    seen = _seen if SEEDS >= 60 and _seen else sum((run(n).counts for n in range(60)), Counter())
    wanted = [fate.value for fate in (*Append, *Ask)]
    wanted += [
        "crash", "crash while it recovers", "killed before an append",
        "killed before bytes are sent", "killed stored, not acknowledged",
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
    first, second, other = run(7), run(7), run(8)
    assert first == second
    assert (first.log, first.transcripts) != (other.log, other.transcripts)


@pytest.mark.parametrize("seed", [2, 13, 15])
@pytest.mark.slow
@pytest.mark.system
def test_the_same_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    here = run(seed)
    found = subprocess.run(
        [sys.executable, str(_RUN), "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"log {here.log}" in found
    assert f"transcripts {here.transcripts}" in found
