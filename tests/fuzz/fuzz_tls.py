"""TLS: whatever a client sends, only data encrypted for this server is passed up.

Bit 0 of the first byte of an input: a real client completes its handshake first, and the input
follows it. The second byte determines how the input is cut: 0 is not at all.
"""

import asyncio
import ssl
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.certs import Authority
from stagefuzz import Lower, Turns, Upper

from actors.transports.handshakes import Handshakes, take_step
from actors.transports.tls import TlsStage
from actors.transports.tls_context import TlsOptions, make_context


class AtOnce(Handshakes):
    """Handshakes without threads."""

    def step(self, tls, done, wanted, *, new):  # type: ignore[no-untyped-def,override]
        asyncio.get_running_loop().call_soon(done, take_step(tls))
        return True

    def close(self) -> None: ...


with tempfile.TemporaryDirectory(prefix="foldmq-fuzz-") as _name:
    _authority = Authority(Path(_name))
    _server = _authority.server()
    CONTEXT = make_context(TlsOptions(_server.certificate, _server.key))
    CLIENT = _authority.client_context()
HANDSHAKES = AtOnce(1)


def one(data: bytes) -> None:
    """Have a stage read the input; raises AssertionError if anything of it goes up."""
    if len(data) < 2:
        return
    greeted, step, sent = bool(data[0] & 1), data[1], data[2:]
    with Turns() as turns:
        upper, lower = Upper(), Lower()
        stage = TlsStage(upper, CONTEXT, HANDSHAKES)
        stage.connection_made(lower)
        if greeted:
            greet(stage, lower, turns)
            assert bytes(upper.data) == b"hello"
        for at in range(0, len(sent), step or max(1, len(sent))):
            if lower.closed:
                break
            stage.data_received(sent[at : at + step] if step else sent)
            turns.run()
        assert bytes(upper.data) == (b"hello" if greeted else b"")
        assert not lower.paused
        stage.close()
        assert stage.is_closing()
        stage.connection_lost(None)
        turns.run()
        assert len(upper.lost) == 1


def greet(stage: TlsStage, lower: Lower, turns: Turns) -> None:
    """Shake hands as a client does, and say hello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = CLIENT.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            stage.data_received(outgoing.read())
            turns.run()
            incoming.write(bytes(lower.sent))
            lower.sent.clear()
    client.write(b"hello")
    stage.data_received(outgoing.read())
    turns.run()
