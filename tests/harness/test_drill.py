"""The clients of a drill: what they take for the answer to their DISCONNECT."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from harness import drill, packets
from harness.drill import ClientWithWill
from harness.drillaccount import Account, Message
from harness.rawclient import RawClient

pytestmark = pytest.mark.system

CONNACK = b"\x20\x02\x01\x00"
LONG = 60.0


class Moment(threading.Event):
    """A moment that is waited for, however long that takes."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return super().wait(LONG)


class Server:
    """Accepts CONNECT and does with the first connection what a test says."""

    def __init__(self, closes: Callable[[socket.socket], object]) -> None:
        self._closes = closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LONG)
        self.port: int = self._listener.getsockname()[1]
        self.over = Moment()
        """The first connection is closed."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        near, _ = self._listener.accept()
        with near:
            near.settimeout(LONG)
            near.recv(1000)
            near.sendall(CONNACK)
            self._closes(near)
        self.over.set()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def until_disconnect(near: socket.socket) -> None:
    """Close when DISCONNECT has come."""
    assert near.recv(1000) == packets.disconnect()


def at_once(_near: socket.socket) -> None:
    """Close before DISCONNECT."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(closes: Callable[[socket.socket], object]) -> Server:
        made.append(Server(closes))
        return made[-1]

    yield make
    for server in made:
        server.close()


class OneLife(ClientWithWill):
    """Ends its first connection with DISCONNECT: behind ``before``, if that is given."""

    def __init__(self, port: int, before: Moment | None, crashes: list[int]) -> None:
        self.notes: list[str] = []
        super().__init__(
            Account(),
            port,
            "mortal",
            seed=1,
            crashes=lambda: crashes.pop(0) if len(crashes) > 1 else crashes[0],
            note=self.notes.append,
        )
        self.account.subscribed("watch", "will/", 1)
        if before is not None:
            self.finishing = before
        else:
            self.finishing.set()

    def live(self) -> None:
        """Run the client for one connection."""
        with RawClient(self.port) as client:
            self.life(client)

    @property
    def problems(self) -> tuple[bool, bool]:
        """Whether it is wrong that its will does not come, and that it does."""
        absent = bool(self.account.problems())
        one = Message("mortal", "will/mortal", 1, 1)
        self.account.received(
            "watch",
            packets.Publish(one.topic, one.payload, 1, 1, dup=False, retain=False),
            accepted=True,
        )
        return absent, bool(self.account.problems())


def test_the_end_of_the_stream_behind_disconnect_cancels_the_will(
    serve: Callable[..., Server],
) -> None:
    mortal = OneLife(serve(until_disconnect).port, None, [2])
    mortal.live()
    assert mortal.done
    assert mortal.problems == (False, True)
    assert mortal.notes == []


def test_the_end_of_the_stream_before_disconnect_cancels_no_will(
    serve: Callable[..., Server],
) -> None:
    server = serve(at_once)
    mortal = OneLife(server.port, server.over, [2])
    mortal.live()
    assert not mortal.done
    assert mortal.problems == (True, False)
    assert mortal.notes == ["connection of mortal with will 1 closed"]


@pytest.mark.parametrize("crashes", [[1], [0, 1], [0, 2]])
def test_an_end_during_a_strike_leaves_the_will_open(
    serve: Callable[..., Server], crashes: list[int]
) -> None:
    mortal = OneLife(serve(until_disconnect).port, None, crashes)
    mortal.live()
    assert not mortal.done
    assert mortal.problems == (False, False)


def test_a_late_end_leaves_the_will_open(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "LINGER", 0.0)
    mortal = OneLife(serve(until_disconnect).port, None, [2])
    mortal.live()
    assert mortal.done
    assert mortal.problems == (False, False)
