"""Builds mqttload, the load generator, and runs it."""

import json
import shutil
import subprocess
from typing import Any

from bench.brokers.broker_processes import ROOT, BenchError

LOADER = ROOT / "bench" / "mqttload"


def compile_loader() -> None:
    """Build mqttload when its source is newer than the program."""
    source = LOADER.with_suffix(".c")
    if LOADER.exists() and LOADER.stat().st_mtime >= source.stat().st_mtime:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError("no C compiler found to build bench/mqttload (on Debian: apt install gcc)")
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", LOADER, source], check=True)


def run_load(
    arguments: list[str], port: int, pid: int, nats_pid: int | None = None
) -> dict[str, Any]:
    """Run mqttload; the result has a key ``problem`` if messages were lost or the run did not
    end."""
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
