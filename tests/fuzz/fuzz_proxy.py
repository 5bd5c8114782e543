"""The PROXY protocol: a header is refused, or names the same client however it is cut.

The first byte of an input determines how it is cut: 0 is not at all.
"""

import ipaddress
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from stagefuzz import Lower, Upper

from actors.transports.proxy_protocol import ProxyStage

ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"),)
LONGEST = 16 + 4096
"""Bytes of a header."""


def one(data: bytes) -> None:
    """Have a stage read the input, cut in two ways; raises AssertionError if they differ."""
    if not data:
        return
    step, sent = data[0], data[1:]
    whole = read(sent, 0)
    assert read(sent, step) == whole, "another client when the header comes in other pieces"
    up, peer, pending = whole
    host, port = peer
    assert str(ipaddress.ip_address(host)) == host
    assert 0 <= port <= 0xFFFF
    assert not (pending and up)
    assert sent.endswith(up)
    assert len(sent) - len(up) <= LONGEST or pending


def read(sent: bytes, step: int) -> tuple[bytes, tuple[str, int], bool]:
    """The bytes passed on, the client, and whether it is still unknown."""
    upper, lower = Upper(), Lower()
    stage = ProxyStage(upper, ANYWHERE)
    stage.connection_made(lower)
    for at in range(0, len(sent), step or max(1, len(sent))):
        if lower.closed:
            break
        stage.data_received(sent[at : at + step] if step else sent)
    about = stage.get_extra_info
    assert lower.closed == (stage.error is not None)
    assert not (stage.error or "").encode().translate(None, bytes(range(32, 127)))
    return bytes(upper.data), about("peername"), about("peer_pending")
