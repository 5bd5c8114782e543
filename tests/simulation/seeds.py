"""Many random runs from the command line, each decided by its seed."""

import argparse
from collections import Counter
from collections.abc import Callable


def run_seeds(description: str | None, run: Callable[[int], Counter[str]]) -> None:
    """Run the seeds that the command line asks for; print what failed, and what happened."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = 0
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            counts += run(seed)
        except Exception as error:  # noqa: BLE001 - every failure of a seed is to be shown
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    for what, count in counts.most_common():
        print(f"{count:9} {what}")
    print(f"{asked.seeds} seeds, {failed} failed")
