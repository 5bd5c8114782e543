"""A TCP proxy that cuts its connections in the middle of their data."""

import contextlib
import socket
import struct
import threading

_CHUNK = 1 << 16


class Proxy:
    """Passes connections to its `port` on to `target`, a port of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._fuse: tuple[int, int] | None = None
        """Direction and the bytes that still pass before the cut."""
        self._blown = threading.Event()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, direction: int, size: int, timeout: float) -> bool:
        """Resets all connections after `size` more bytes, to the target (0) or from it (1).

        No connection is let through from then on, until `restore`. Returns whether that many bytes
        came within `timeout` seconds; otherwise the connections are reset all the same.
        """
        self._blown.clear()
        with self._lock:
            self._fuse = direction, size
        blown = self._blown.wait(timeout)
        if not blown:
            self._blow()
        return blown

    @property
    def armed(self) -> bool:
        """Whether a cut is to come."""
        return self._fuse is not None

    def restore(self) -> None:
        """Lets connections through again."""
        self._refusing = False

    def close(self) -> None:
        """Ends listening and all connections."""
        self._refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._blow()

    def _blow(self) -> None:
        with self._lock:
            self._refusing = True
            self._fuse = None
            victims, self._open = self._open, set()
        for victim in victims:
            _reset(victim)
        self._blown.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _reset(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for direction, ends in enumerate(((near, far), (far, near))):
                threading.Thread(target=self._pump, args=(direction, *ends), daemon=True).start()

    def _pump(self, direction: int, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                passing = self._passing(direction, len(data))
                sink.sendall(data[:passing])
                if passing < len(data):
                    self._blow()
                    return
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            _reset(end)

    def _passing(self, direction: int, size: int) -> int:
        """How many of these bytes may pass."""
        with self._lock:
            if self._fuse is None or self._fuse[0] != direction:
                return size
            left = self._fuse[1]
            self._fuse = direction, max(0, left - size)
            return min(left, size)


def _reset(end: socket.socket) -> None:
    """Closes with a TCP reset, and wakes what waits in it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)
    end.close()
