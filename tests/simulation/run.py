"""Run seeds of the simulation by hand.

``run.py --seed N`` runs one and prints its digests and what happened; ``run.py --seeds 5000``
runs many, on ``--jobs`` processes, from ``--first`` on, and prints which failed and why.
"""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from simulation.chaos import (  # noqa: E402
    Chaos,
    Outcome,
    errors_of_the_broker,
    run,
    small_checkpoints,
    small_parts,
)
from simulation.loop import simulate  # noqa: E402


def attempt(seed: int) -> tuple[int, Counter[str], str]:
    """Run a seed; return its counts and what is wrong."""
    try:
        return seed, run(seed).counts, ""
    except Exception as error:  # noqa: BLE001 - every failure of a seed is to be shown
        return seed, Counter(), f"{type(error).__name__}: {error}"


def one(seed: int) -> None:
    """Run one seed and tell all about it."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = Chaos(seed, errors)
        try:
            with small_parts(wanted=chaos.world.cutting):
                outcome: Outcome = simulate(chaos.run)
        finally:
            print("\n".join(chaos.trace))
    print_counts(outcome.counts)
    print(f"log {outcome.log}\ntranscripts {outcome.transcripts}")


def many(first: int, seeds: int, jobs: int) -> int:
    """Run many seeds; return how many failed."""
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for seed, found, wrong in pool.map(attempt, range(first, first + seeds), chunksize=10):
            counts += found
            if wrong:
                failed += 1
                print(f"seed {seed}: {wrong[:500]}", flush=True)
    spent = time.perf_counter() - began
    print_counts(counts)
    print(f"{seeds} seeds, {failed} failed, {seeds / spent:.1f} seeds/s")
    return failed


def print_counts(counts: Counter[str]) -> None:
    """Print how often what happened."""
    for what, count in counts.most_common():
        print(f"{count:9} {what}")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    if asked.seed is not None:
        one(asked.seed)
        return 0
    return int(many(asked.first, asked.seeds, asked.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
