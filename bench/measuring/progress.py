"""Prints the progress of a run, and numbers as text."""

import sys
from collections.abc import Iterable
from typing import Any

from bench.measuring.metrics import Metric


def number(value: float | None) -> str:
    """Return a number as text."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def report(load: str, which: str, metrics: Iterable[Metric], result: dict[str, Any]) -> None:
    """Print the result of a run."""
    shown = ", ".join(
        f"{metric.label} {number(metric.read(result))} {metric.unit}".rstrip() for metric in metrics
    )
    note = f" PROBLEM: {result['problem']}" if "problem" in result else ""
    say(f"{load} {which}: {shown}{note}")


def say(line: str) -> None:
    """Print progress to stderr; only the table goes to stdout."""
    print(line, file=sys.stderr, flush=True)
