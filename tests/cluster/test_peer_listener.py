"""The leader's listener for other nodes."""

import asyncio
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from cluster.peer_listener import PeerListener


class Lower(asyncio.Transport):
    """A connection from an address."""

    def write(self, _data: object) -> None:
        """Send nothing."""

    def abort(self) -> None:
        """Do nothing."""


async def test_a_failed_tls_handshake_is_logged_with_its_address() -> None:
    node: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0))
    admission: Any = None
    stage = PeerListener(node, admission, b"key").accept()
    stage.connection_made(Lower({"peername": ("10.0.0.2", 4000)}))
    with capture_logs() as logs:
        stage.connection_lost(ConnectionError("closed within the TLS handshake"))
    assert [line["address"] for line in logs] == ["10.0.0.2:4000"]
