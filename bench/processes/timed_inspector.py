"""``foldmq`` with a timed inspector: how long it holds the event loop at a time.

The first argument is the file that it writes at its end; all else is the broker as it is. What is
timed are the slices in which the inspector works, and the making of JSON of its answers, which
follows them: by the wall, which counts what else the machine did meanwhile, and in CPU time of the
thread, which does not. Garbage collections that came in a slice are timed for themselves: they
come when enough was made by whomever.
"""

import atexit
import gc
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from actors.inspection.inspector import Inspector
from cli.main import main
from cli.serve import microservice

_OFTEN = 0.99


class Collections:
    """CPU seconds of all garbage collections so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, _about: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._begun


class Holds:
    """Durations of one kind of work, in milliseconds."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._collecting: list[float] = []

    def timed(self, work: Any, *arguments: Any) -> Any:
        """Time some work; return its result."""
        collected = self._collections.seconds
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return work(*arguments)
        finally:
            used, taken = time.thread_time() - cpu, time.perf_counter() - wall
            collected = self._collections.seconds - collected
            self._wall.append(taken * 1000)
            self._cpu.append((used - collected) * 1000)
            self._collecting.append(collected * 1000)

    def summary(self) -> dict[str, float]:
        """Return the number of times, the maximum duration, and the p99."""
        found: dict[str, float] = {"count": len(self._wall)}
        kinds = {"wall": self._wall, "cpu": self._cpu, "collecting": self._collecting}
        for name, unsorted in kinds.items():
            taken = sorted(unsorted)
            found[f"{name}_p99"] = taken[int(len(taken) * _OFTEN)] if taken else 0.0
            found[f"{name}_most"] = taken[-1] if taken else 0.0
        return found


def install(file: Path) -> None:
    """Time the inspector of this process; write the figures to ``file`` when the process ends."""
    collections = Collections()
    slices, answers = Holds(collections), Holds(collections)
    work = Inspector.on_receive

    def on_receive(inspector: Inspector, message: Any) -> Any:
        return slices.timed(work, inspector, message)

    def dumps(answer: Any) -> Any:
        return answers.timed(orjson.dumps, answer)

    # For this process only.
    Inspector.on_receive = on_receive  # type: ignore[assignment, method-assign]
    shown = SimpleNamespace(loads=orjson.loads, dumps=dumps)
    microservice.orjson = shown  # type: ignore[assignment, attr-defined]

    def write() -> None:
        found = {"slices": slices.summary(), "answers": answers.summary()}
        file.write_text(json.dumps(found), "utf-8")

    atexit.register(write)


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
