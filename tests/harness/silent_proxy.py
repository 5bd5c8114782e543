"""A TCP proxy that can stop forwarding without closing its connections."""

import contextlib
import socket
import threading

_CHUNK = 1 << 16


class SilentProxy:
    """Passes connections to its `port` on to `target`, a port of 127.0.0.1.

    While it is silent it reads nothing and opens nothing; bytes and connections that come wait in
    the system's buffers and go on when it is restored.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._passing = threading.Event()
        self._passing.set()
        self._closed = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Lets nothing pass from now on."""
        self._passing.clear()

    def restore(self) -> None:
        """Lets everything pass again."""
        self._passing.set()

    def close(self) -> None:
        """Ends listening and all connections."""
        self._closed = True
        self._passing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            _end(end)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._passing.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            _end(near)
            return
        far.settimeout(None)
        for end in (near, far):  # as the ends of the connection have it
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                if self._closed:
                    break
                sink.sendall(data)
        self._passing.wait()
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            _end(end)


def _end(end: socket.socket) -> None:
    """Closes, and wakes what waits in it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
