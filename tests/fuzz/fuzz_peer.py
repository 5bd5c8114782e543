"""The header of a node: refused, or the same client however it is cut.

The first byte of an input determines how it is cut. The rest is the description of the client; it
gets the header and the HMAC that belong to it, as only a node that has the key can make them.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from actors.transports.proxy_protocol import (
    BadHeader,
    encode_header,
)
from cluster import client_header
from cluster.client_header import BadClientHeader, decode_client

KEY, NONCE = b"key of the cluster", bytes(client_header.NONCE_SIZE)


def one(data: bytes) -> None:
    """Read the input as a header and as a description; raises AssertionError if pieces differ."""
    if not data:
        return
    read(data[1:], data[0])
    try:
        whole = encode_header(("192.0.2.7", 1), [(0xE0, data[1:]), (0xE1, bytes(32))])
    except BadHeader:
        return
    read(whole[:-32] + client_header._digest(whole[:-32], NONCE, KEY), data[0])


def read(sent: bytes, step: int) -> None:
    """Read a header at once and in pieces."""
    try:
        whole = decode_client(sent, NONCE, KEY)
    except BadClientHeader:
        return
    found = None
    for at in range(0, len(sent), step or 1):
        found = decode_client(sent[: at + (step or 1)], NONCE, KEY)
        if found is not None:
            break
    assert found == whole
    if whole is not None:
        client, size = whole
        assert size <= len(sent)
        assert isinstance(client.node, str)
        assert isinstance(client.listener, str)
