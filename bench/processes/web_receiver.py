"""A web server for what sinks post: it answers with success, counts, and does nothing else."""

import re
import socket
import threading
import time
from typing import Self

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class WebReceiver:
    """Counts a mark in the bodies of requests, for a ``with`` block.

    It is a thread: its processor time is that of the benchmark.
    """

    def __init__(self, mark: bytes, expected: int) -> None:
        """``mark`` is in each message once; ``expected`` messages are to come."""
        self._mark = mark
        self._expected = expected
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._first = (0, 0.0)
        self.count = 0
        """Messages that have come."""
        self.began, self.complete = threading.Event(), threading.Event()
        self.seconds = 0.0
        """From the first request to that with the last message."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        """The address for a sink."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def rate(self) -> float:
        """Messages a second, without those of the first request, which begins the time."""
        return (self.count - self._first[0]) / self.seconds if self.seconds else 0.0

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytearray()
        while True:
            end = data.find(b"\r\n\r\n")
            length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
            if length is not None and len(data) >= (stop := end + 4 + int(length[1])):
                self._take(data.count(self._mark, end + 4, stop))
                del data[:stop]
                connection.sendall(_ANSWER)
            elif more := connection.recv(1 << 20):
                data += more
            else:
                return

    def _take(self, messages: int) -> None:
        self.count += messages
        now = time.perf_counter()
        if not self.began.is_set():
            self._first = self.count, now
            self.began.set()
        self.seconds = now - self._first[1]
        if self.count >= self._expected:
            self.complete.set()
