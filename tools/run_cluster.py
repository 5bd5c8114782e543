"""Starts a trial cluster on this machine: three NATS servers and three foldmq nodes.

    make cluster

It prints the addresses, and example commands. Ctrl-C stops all processes. The logs of the processes
and the event log are in foldmq-cluster/, which is emptied at each start.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

BIN = Path(sys.executable).parent
FOLDER = Path("foldmq-cluster")
COUNT = 3
CLUSTER = "demo"
NATS_PORT, MQTT_PORT, METRICS_PORT = 14222, 1883, 18841
START_SECONDS = 60.0


def free_port(wanted: int, taken: set[int]) -> int:
    """Return a free port of this machine, the wanted one or one above it."""
    port = wanted
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port not in taken:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                taken.add(port)
                return port
        port += 1


class Processes:
    """The processes of the cluster; all of them end with this one."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a process, with a log file of its own."""
        with (FOLDER / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(  # noqa: S603 - what this file says
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process only
            )

    def end(self) -> None:
        """End all processes, the nodes first."""
        for kind in ("node", "nats"):
            ending = [one for name, one in self.running.items() if name.startswith(kind)]
            for process in ending:
                # A suspended process must be resumed before it can end.
                for number in (signal.SIGTERM, signal.SIGCONT):
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(number)
            for process in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                    continue
                process.kill()
                process.wait()


def start_nats(processes: Processes, taken: set[int]) -> list[int]:
    """Start a NATS cluster; return the ports of its servers."""
    ports = [free_port(NATS_PORT + number, taken) for number in range(COUNT)]
    routes = [free_port(NATS_PORT + 2000 + number, taken) for number in range(COUNT)]
    for number in range(COUNT):
        config = {
            "server_name": f"nats{number + 1}",
            "host": "127.0.0.1",
            "port": ports[number],
            "jetstream": {
                "store_dir": str(FOLDER / f"nats{number + 1}"),
                "sync_interval": "always",
            },
            "max_payload": 4 << 20,
            "cluster": {
                "name": CLUSTER,
                "listen": f"127.0.0.1:{routes[number]}",
                "routes": [f"nats-route://127.0.0.1:{port}" for port in routes],
            },
        }
        file = FOLDER / f"nats{number + 1}.conf"
        file.write_text(json.dumps(config, indent=2))
        processes.start(f"nats{number + 1}", str(BIN / "nats-server"), "-c", str(file))
    return ports


def role(port: int) -> str:
    """Return the role of a node that accepts clients, empty if it accepts none."""
    with contextlib.suppress(OSError, ValueError):
        address = f"http://127.0.0.1:{port}/readyz"
        with urllib.request.urlopen(address, timeout=1.0) as answer:
            found = json.load(answer)
            return str(found["role"]) if found["ready"] else ""
    return ""


def main() -> int:
    """Run the cluster until Ctrl-C; the exit code is 1 if it did not start."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    taken: set[int] = set()
    processes = Processes()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        urls = ",".join(f"nats://127.0.0.1:{port}" for port in start_nats(processes, taken))
        key = FOLDER / "cluster.key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        mqtt = [free_port(MQTT_PORT + number, taken) for number in range(COUNT)]
        metrics = [free_port(METRICS_PORT + number, taken) for number in range(COUNT)]
        for number in range(COUNT):
            processes.start(
                f"node{number + 1}",
                *(str(BIN / "foldmq"), "serve", "--cluster", CLUSTER, "--cluster-key-file"),
                *(str(key), "--cluster-listen", "127.0.0.1:0", "--nats-url", urls),
                *("--data-dir", str(FOLDER / f"data{number + 1}"), "--web", "off"),
                *("--listen", f"127.0.0.1:{mqtt[number]}"),
                *("--metrics", f"127.0.0.1:{metrics[number]}"),
            )
        sys.stdout.write("starting three NATS servers and three foldmq nodes ...\n")
        began = time.monotonic()
        while not all(map(role, metrics)):
            ended = [name for name, one in processes.running.items() if one.poll() is not None]
            if ended or time.monotonic() - began > START_SECONDS:
                what = f"{ended[0]} ended" if ended else "the nodes do not become ready"
                sys.stderr.write(f"{what}: see {FOLDER}/*.log\n")
                return 1
            time.sleep(0.1)
        sys.stdout.write(help_text(processes, mqtt, metrics, urls))
        sys.stdout.flush()
        while True:
            signal.pause()
    except KeyboardInterrupt:
        sys.stdout.write("\nending\n")
        return 0
    finally:
        # make sends another signal after Ctrl-C, which must not end this process before the others.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        processes.end()


def help_text(processes: Processes, mqtt: list[int], metrics: list[int], urls: str) -> str:
    """Return the addresses to connect to, and example commands."""
    lines, leader = [], 1
    for number in range(COUNT):
        node, nats = processes.running[f"node{number + 1}"], processes.running[f"nats{number + 1}"]
        if role(metrics[number]) == "leading":
            leader = number + 1
        lines.append(
            f"  node {number + 1}: MQTT on 127.0.0.1:{mqtt[number]}, /readyz and /metrics on "
            f"127.0.0.1:{metrics[number]}, process {node.pid}; its NATS server: process {nats.pid}"
        )
    foldmq = f"{BIN / 'foldmq'}"
    last = mqtt[-1]
    return "\n".join(
        [
            f"All nodes take clients; node {leader} leads:",
            *lines,
            "",
            f"  {foldmq} sub -p {last} -t demo/#                subscribe at the third node",
            f"  {foldmq} pub -p {mqtt[1]} -t demo/x -m hello -q 1     publish at the second one",
            f"  {foldmq} nodes --cluster {CLUSTER} --nats-url {urls}",
            f"  {foldmq} nodes move --cluster {CLUSTER} --nats-url {urls}",
            "",
            "Kill, suspend or stop any node or any NATS server, for example the leader:",
            f"  kill -9 {processes.running[f'node{leader}'].pid}",
            f"  kill -STOP {processes.running[f'node{leader}'].pid}     (kill -CONT ends it)",
            "",
            f"Logs are in {FOLDER}/. Ctrl-C ends everything.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
