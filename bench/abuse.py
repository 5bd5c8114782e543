"""Staying up: 100 good clients at QoS 1 beside 5 000 connections of ten kinds that misbehave.

``python bench/abuse.py`` starts a broker with the settings of SETTINGS, lets the good clients run
for a while by themselves, then beside the others, then by themselves again, and shows latencies,
losses and memory. It fails when a good client lost something or was disconnected, when the p99 of
its latency more than doubled, or when memory did not come back to within 20 %.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from brokers import ROOT, BenchError, Foldmq, free_port, running

HERE = Path(__file__).resolve().parent
sys.path.append(str(ROOT / "tests"))
from harness.certs import Authority  # type: ignore[import-not-found]  # noqa: E402 - see above

USER, PASSWORD = "guest", "open sesame"
"""Of all that get in: the good ones, and those who misbehave once they are in."""
SETTINGS = """
password_file = "{passwords}"
connect_timeout = "5s"
max_packet_size = "64 KiB"
max_subscriptions = 100
max_topic_levels = 32
max_wildcards = 8
publish_rate_per_client = 50
publish_bytes_per_client = "16 KiB"
publish_rate_per_address = 2000
publish_bytes_per_address = "1 MiB"
connection_rate_per_address = 100
max_connections_per_address = 300
rate_patience = "10s"
slow_reader_time = "10s"
max_unread_bytes = "64 MiB"
flapping_connects = 10
max_faults_per_address = 25

[[listen]]
address = "127.0.0.1:{port}"

[[listen]]
address = "tls://127.0.0.1:{tls_port}"
tls_cert = "{pair.certificate}"
tls_key = "{pair.key}"
"""
"""Several times what these good clients need, on a network that is not trusted."""


class Helper:
    """A process that takes words on stdin and answers with lines of JSON."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, str(HERE / program), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, word: str) -> None:
        """Send a line."""
        _file(self._process.stdin).write(f"{word}\n")
        _file(self._process.stdin).flush()

    def hear(self) -> dict[str, Any]:
        """Give the next answer."""
        line = _file(self._process.stdout).readline()
        if not line:
            raise BenchError(f"a helper ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _file(file: IO[str] | None) -> IO[str]:
    if file is None:
        raise BenchError("no pipe")
    return file


@contextlib.contextmanager
def helper(program: str, *arguments: object) -> Iterator[Helper]:
    """Run a program of this directory until the block ends."""
    found = Helper(program, *map(str, arguments))
    try:
        yield found
    finally:
        found.end()


def memory(pid: int) -> float:
    """Give the resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError("the broker has ended")


def descriptors(pid: int) -> int:
    """Give the number of files that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def add_user(passwords: Path) -> None:
    """Make the file of passwords."""
    command = [sys.executable, "-m", "cli.main", "passwd", str(passwords), USER, "--password-stdin"]
    subprocess.run(
        command, cwd=ROOT, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True
    )


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run it all; give the phases, the losses and the memory."""
    passwords = work / "passwords"
    add_user(passwords)
    pair = Authority(work / "certificates").server()
    tls_port = free_port()

    class Configured(Foldmq):
        @classmethod
        def command(cls, port: int, work: Path) -> list[str]:
            config = work / "foldmq.toml"
            settings = {"passwords": passwords, "port": port, "tls_port": tls_port, "pair": pair}
            config.write_text(SETTINGS.format(**settings))
            command = super().command(port, work)
            at = command.index("--listen")
            return [*command[:at], *command[at + 2 :], "--config", str(config)]

    shown = ("--user", USER, "--password", PASSWORD)
    result: dict[str, Any] = {}
    with (
        running(Configured, work) as broker,
        helper("goodclients.py", broker.port, "--rate", options.rate, *shown) as good,
    ):
        good.hear()
        good.tell("phase warm-up")
        good.hear()
        time.sleep(5)
        good.tell("phase before")
        good.hear()
        time.sleep(options.before)
        result["memory_before"] = memory(broker.pid)
        result["descriptors_before"] = descriptors(broker.pid)
        crowd = ("--tls-port", tls_port, "--count", options.count, "--pause", options.pause)
        only = ("--only", options.only) if options.only else ()
        with helper("abusers.py", broker.port, *crowd, *only, *shown) as bad:
            good.tell("phase during")
            result["before"] = good.hear()
            most = 0.0
            deadline = time.monotonic() + options.during
            while time.monotonic() < deadline:
                time.sleep(0.5)
                most = max(most, memory(broker.pid))
            result["memory_most"] = most
            result["descriptors_most"] = descriptors(broker.pid)
            good.tell("phase between")
            result["during"] = good.hear()
            bad.tell("end")
            result["abuse"] = bad.hear()
        deadline = time.monotonic() + options.come_back
        while memory(broker.pid) > 1.2 * result["memory_before"] and time.monotonic() < deadline:
            time.sleep(1)
        result["memory_after"] = memory(broker.pid)
        result["descriptors_after"] = descriptors(broker.pid)
        good.tell("phase after")
        good.hear()
        time.sleep(options.before)
        good.tell("end")
        result["after"] = good.hear()
        result["end"] = good.hear()
    return result


def faults(result: dict[str, Any]) -> list[str]:
    """Say what is not as it should be."""
    found = []
    end, before, during = result["end"], result["before"], result["during"]
    found += [
        f"{what}: {end[what]}" for what in ("lost", "unacknowledged", "disconnects") if end[what]
    ]
    if before["p99_ms"] is None or during["p99_ms"] is None:
        found.append("nothing was delivered")
    elif during["p99_ms"] > 2 * before["p99_ms"]:
        found.append(f"p99 went from {before['p99_ms']} ms to {during['p99_ms']} ms")
    if result["memory_after"] > 1.2 * result["memory_before"]:
        found.append(
            f"memory went from {result['memory_before']:.0f} MiB "
            f"to {result['memory_after']:.0f} MiB"
        )
    return found


def main() -> int:
    """Run as told on the command line; the exit code is 1 when something is not as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="connections that misbehave")
    parser.add_argument("--only", help="of one kind only")
    parser.add_argument("--rate", type=float, default=1000, help="messages in a second")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds from close to open")
    parser.add_argument("--before", type=float, default=15.0, help="seconds without abuse")
    parser.add_argument("--during", type=float, default=40.0, help="seconds with it")
    parser.add_argument("--come-back", type=float, default=60.0, help="seconds memory has to")
    parser.add_argument("--dir", type=Path, help="where the broker's data is")
    parser.add_argument("--keep-log", type=Path, help="copy the broker's log here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="abuse-", dir=options.dir) as work:
        try:
            result = measure(options, Path(work))
        finally:
            if options.keep_log is not None:
                options.keep_log.write_bytes((Path(work) / "foldmq.log").read_bytes())
    print(json.dumps(result, indent=1))
    found = faults(result)
    for fault in found:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"abuse: {error}")
