"""A minimal broker that answers as a test demands, for the clients' error paths."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CONNACK_OK = b"\x20\x02\x00\x00"


@contextmanager
def fake_broker(*answers: bytes, port: int = 0) -> Iterator[int]:
    """Give the port of a broker that answers each packet it reads with the next of ``answers``.

    After the last answer it closes the connection and the port.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_serve, args=(listener, answers), daemon=True)
        thread.start()
        yield port
    thread.join(10)


def _serve(listener: socket.socket, answers: tuple[bytes, ...]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    listener.close()
    with connection:
        connection.settimeout(10)
        for answer in answers:
            if not connection.recv(65536):
                return
            connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
