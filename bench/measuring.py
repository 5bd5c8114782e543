"""What every measurement uses: the load generator, results, medians, and rows of the table."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokers import BenchError
from loads import Metric, Target, Values

HERE = Path(__file__).resolve().parent
LOADER = HERE / "mqttload"


Cost = tuple[float, float]
"""Microseconds of processor time for each message: of the broker, of the NATS beneath it."""


@dataclass
class Row:
    """One metric of one load with the median of every broker."""

    load: str
    metric: Metric
    values: Values
    targets: tuple[Target, ...]
    group: str = "own"
    ratios: Values = field(default_factory=dict)
    """foldmq's value through the other broker's: the median of those of the pairs."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a broker has no value."""

    @property
    def name(self) -> str:
        return f"{self.load}: {self.metric.label} {self.metric.unit}".rstrip()

    def met(self, target: Target) -> bool | None:
        return target.met(self.values.get("foldmq"), self.ratios)


def own_rows(
    load: str,
    metrics: Iterable[Metric],
    runs: list[dict[str, Any]],
    *,
    quick: bool,
    group: str = "own",
) -> list[Row]:
    """Return the rows of a load that only foldmq has."""
    return [
        Row(load, metric, {"foldmq": median(metric, runs)}, () if quick else metric.targets, group)
        for metric in metrics
    ]


def compile_loader() -> None:
    """Build mqttload when its source is newer than the program."""
    source = HERE / "mqttload.c"
    if LOADER.exists() and LOADER.stat().st_mtime >= source.stat().st_mtime:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError("no C compiler found to build bench/mqttload (on Debian: apt install gcc)")
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", LOADER, source], check=True)


def run_load(
    arguments: list[str], port: int, pid: int, nats_pid: int | None = None
) -> dict[str, Any]:
    """Run mqttload; the result has a key ``problem`` when something was lost or did not end."""
    command = [str(LOADER), *arguments, "-P", str(port), "--pid", str(pid)]
    if nats_pid is not None:
        command += ["--apart", str(nats_pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"problem": done.stderr.strip() or f"mqttload ended with {done.returncode}"}
    if done.returncode:
        faults = ("lost", "dup", "misordered", "corrupt", "refused", "failed", "disconnects")
        seen = [f"{fault} {result[fault]}" for fault in faults if result.get(fault)]
        status = result.get("error") or f"status {result.get('status')}"
        result["problem"] = ", ".join([*seen, status])
    return result


def cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def median(metric: Metric, runs: list[dict[str, Any]]) -> float | None:
    """Return the median; None if a run failed, because a rate with lost messages does not count."""
    values = [None if "problem" in run else metric.read(run) for run in runs]
    good = [value for value in values if value is not None]
    return statistics.median(good) if runs and len(good) == len(runs) else None


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
    """Print progress to stderr; stdout has only the table."""
    print(line, file=sys.stderr, flush=True)
