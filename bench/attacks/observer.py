"""Observes the host and the operator's view of a broker: memory, files, metrics, log."""

import contextlib
import http.client
import json
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from bench.brokers.broker_processes import BenchError, Running

_EVERY = 0.25
"""Seconds between two samples of memory; every fourth one includes the metrics."""
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>[-+.\deEinfNa]+)$")
_TURN = re.compile(r"foldmq_turn_longest_(?P<work>processor_)?seconds")
"""The gauges of the longest turn of the event loop, if the broker has them."""
_REACTIONS = re.compile(r"foldmq_\w*(refused|dropped|denied|failed|pauses|closed|limited)\w*_total")
_LOGGED_LEVELS = {"warning", "error", "critical"}


class Observer:
    """Observes a broker from outside during its ``with`` block."""

    def __init__(self, broker: Running, metrics: str) -> None:
        self._broker = broker
        self._metrics = metrics
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._most = 0.0
        self._turn: float | None = None
        self._work: float | None = None
        self._log_from = 0
        self._before: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def memory(self) -> float:
        """Return the resident memory of the broker, MiB."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self._broker.pid}/status").read_text("ascii").splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        raise BenchError("the broker has ended")

    def descriptors(self) -> int:
        """Return the number of files that the broker has open."""
        return len(list(Path(f"/proc/{self._broker.pid}/fd").iterdir()))

    def attack_begins(self) -> None:
        """Begin anew: store the current counters and the end of the log."""
        self._before = self._counters(self._ask())
        self._log_from = self._broker.log.stat().st_size
        self._most, self._turn, self._work = self.memory(), None, None

    def attack_ended(self) -> dict[str, Any]:
        """Return the peak memory, and the longest turn and part that the broker reported."""
        self._look_at_turns(self._ask())
        return {"memory_most": self._most, "turn_s": self._turn, "work_s": self._work}

    def operator(self) -> dict[str, Any]:
        """Return the counters that grew since then, and the warnings in the log."""
        grown = self._counters(self._ask()) - self._before
        said: Counter[str] = Counter()
        with self._broker.log.open("rb") as log:
            log.seek(self._log_from)
            for text in log:
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    if line["level"] in _LOGGED_LEVELS:
                        why = line.get("limit") or line.get("reason") or ""
                        said[f"{line['level']}: {line['event']} {why}".strip()] += 1
        return {"counters": dict(grown), "log": dict(said)}

    def _watch(self) -> None:
        looks = 0
        while not self._ends.wait(_EVERY):
            looks += 1
            try:
                self._most = max(self._most, self.memory())
            except BenchError:
                return
            if looks % 4 == 0:
                self._look_at_turns(self._ask(2))

    def _look_at_turns(self, samples: dict[str, float]) -> None:
        for name, value in samples.items():
            if (found := _TURN.fullmatch(name)) is None:
                continue
            if found["work"]:
                self._work = max(self._work or 0.0, value)
            else:
                self._turn = max(self._turn or 0.0, value)

    @staticmethod
    def _counters(samples: dict[str, float]) -> Counter[str]:
        found = {name: int(value) for name, value in samples.items() if _REACTIONS.match(name)}
        return Counter(found)

    def _ask(self, timeout: float = 30) -> dict[str, float]:
        """Return the broker's metrics; empty if it does not answer in time."""
        connection = http.client.HTTPConnection(self._metrics, timeout=timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException):
                connection.close()
                time.sleep(_EVERY)
                continue
            connection.close()
            found = map(_SAMPLE.match, text.splitlines())
            return {
                f"{each['name']}{{{each['labels']}}}" if each["labels"] else each["name"]: float(
                    each["value"]
                )
                for each in found
                if each is not None
            }
        return {}
