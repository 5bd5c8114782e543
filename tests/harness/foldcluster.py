"""Nodes of one cluster, behind a balancer that polls `/readyz`."""

import contextlib
import http.client
import itertools
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.broker import Broker, BrokerFailedError, free_port
from harness.drillaccount import Closing
from harness.silent_proxy import SilentProxy
from harness.waiting import until

_LOOK_EVERY = 0.05
_ANSWER = 0.5
"""Seconds in which a node has to say that it is ready."""


class ClusterNode(Broker):
    """A broker that is a node of a cluster; it is reached through `link`, which can be cut."""

    program: str | None = None
    """The command of another version, for the next start."""

    def __init__(
        self, directory: Path, nats_port: int, config: str, *, forked: bool = False
    ) -> None:
        self.link = SilentProxy(nats_port)
        self.metrics = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(
            directory,
            config=f"nats_url = 'nats://127.0.0.1:{self.link.port}'\n"
            f"metrics = '127.0.0.1:{self.metrics}'\nbridge = false\nlog_format = 'json'\n{config}",
            forked=forked,
        )

    def command(self) -> list[str]:
        """Its command line."""
        ours, *arguments = super().command()
        return [self.program or ours, *arguments]

    def environment(self) -> dict[str, str]:
        """Its variables; another version imports its own modules."""
        own = {"PYTHONPATH": ""} if self.program else {}
        return {**super().environment(), **own}

    def start(self) -> None:
        """Starts the process and returns when it reports its role."""
        before = len(self.told("node of a cluster"))
        with self._log_file.open("ab") as log:
            self._process = self._started(log.fileno())
        until(lambda: not self.running or len(self.told("node of a cluster")) > before, "a node")
        if not self.running:
            raise BrokerFailedError(f"exit {self.returncode} at start:\n{self.log}")

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return (self.data_dir / "node").read_text().strip()

    @property
    def reasons(self) -> list[str] | None:
        """Why it takes no clients; empty: it does. None: it does not answer."""
        found = self.state
        return None if found is None else list(found["reasons"])

    @property
    def state(self) -> dict[str, Any] | None:
        """What it says of itself; None: it does not answer."""
        try:
            address = f"http://127.0.0.1:{self.metrics}/readyz"
            with urllib.request.urlopen(address, timeout=_ANSWER) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as refused:
            found = json.load(refused)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return found

    @property
    def ready(self) -> bool:
        """Whether it takes clients, as it says itself."""
        return self.running and self.reasons == []

    @property
    def leads(self) -> bool:
        """Whether it leads and takes clients, as it says itself."""
        found = self.state if self.running else None
        return found is not None and found.get("role") == "leading" and not found["reasons"]

    @property
    def following(self) -> bool:
        """Whether it follows another node, as it says itself."""
        found = self.state if self.running else None
        return found is not None and found.get("role") == "following" and "leader" in found

    def clean_up(self) -> None:
        super().clean_up()
        self.link.close()


_CLOSED = (
    "clients are disconnected until this node knows again that it leads the cluster",
    "log cannot be written: clients are disconnected until it can",
)
"""Log lines of a node that closes its clients."""


def closings(nodes: Iterable[ClusterNode], starts: Iterable[dict[str, Any]]) -> list[Closing]:
    """When nodes closed clients by themselves; `starts` are the BrokerStarted of the logs.

    No connection to an earlier leader outlives a BrokerStarted for long, and none ends because of
    it before: its time is that of a clock before it is written. Nodes may do that without a strike,
    for example if the machine is so busy that a leader is silent for 2 s.
    """
    found = [
        Closing(
            _ms(one["time"]), f"node {one['leader']} leads in epoch {one['epoch']}: {one['cause']}"
        )
        for one in starts
    ]
    found += [
        Closing(_ms(line["timestamp"]), f"node {node.name}: {line['event']}")
        for node in nodes
        for said in _CLOSED
        for line in node.told(said)
    ]
    return sorted(found)


def _ms(time: str) -> int:
    """Unix time in milliseconds of a time in UTC."""
    return (datetime.fromisoformat(time) - datetime.fromtimestamp(0, UTC)) // timedelta(
        milliseconds=1
    )


class Balancer:
    """Passes connections to its `port` on to a node that is ready; closes them if none is.

    With `spread` to any of those that are, else to the one that became ready last. It polls only
    after its `port` was used.
    """

    def __init__(self, nodes: Sequence[ClusterNode], *, spread: bool = False) -> None:
        self._nodes = nodes
        self._turns = itertools.count() if spread else None
        self._ready: list[int] = []
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))

    @cached_property
    def port(self) -> int:
        """Where clients connect."""
        self._ready += [node.port for node in self._nodes if node.reasons == []]
        for node in self._nodes:
            threading.Thread(target=self._watch, args=(node,), daemon=True).start()
        threading.Thread(target=self._accept, daemon=True).start()
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _watch(self, node: ClusterNode) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            ready = node.reasons == []
            if ready and node.port not in self._ready:
                self._ready.append(node.port)
            elif not ready and node.port in self._ready:
                self._ready.remove(node.port)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError, IndexError, ZeroDivisionError):
            # The one that became ready last: the others may not know yet that they are not.
            turn = -1 if self._turns is None else next(self._turns) % len(self._ready)
            far = socket.create_connection(("127.0.0.1", self._ready[turn]), timeout=1)
            far.settimeout(None)
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()
            far.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Nodes:
    """The nodes of one cluster."""

    def __init__(
        self,
        folder: Path,
        nats_ports: Sequence[int],
        config: str,
        *,
        spread: bool = False,
        forked: bool = False,
    ) -> None:
        """One node for each port of a NATS server; ``spread``: clients connect to any of them."""
        self.members = [
            ClusterNode(folder / f"node{number}", port, config, forked=forked)
            for number, port in enumerate(nats_ports)
        ]
        self.balancer = Balancer(self.members, spread=spread)

    @property
    def leader(self) -> ClusterNode:
        """The node that takes clients, as soon as there is one."""
        found: list[ClusterNode] = []

        def look() -> bool:
            found[:] = [one for one in self.members if one.leads]
            return len(found) == 1

        until(look, "one leader")
        return found[0]

    def start(self) -> None:
        """Starts all, one behind the other; the first one leads."""
        for number, node in enumerate(self.members):
            node.start()
            if not number:
                until(lambda node=node: node.leads, "the first leader")  # type: ignore[misc]
        until(lambda: all(one.following for one in self.members[1:]), "followers")

    def clean_up(self) -> None:
        self.balancer.close()
        for node in self.members:
            node.clean_up()
