"""Stages on top of each other, in every combination that a listener may have."""

import ipaddress
import itertools
import ssl

import pytest
from harness.certs import Authority
from upper import Client, Place, Upper, placed
from wsframes import frame, head, next_frame, request

from actors.transports.handshakes import Handshakes
from actors.transports.stack import StackOptions, build_stack
from actors.transports.tls_context import TlsOptions, make_context
from actors.transports.websocket import WebSocketOptions

pytestmark = pytest.mark.system

HEADER = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n"
COMBINATIONS = list(itertools.product([False, True], repeat=3))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    server = authority.server()
    return make_context(TlsOptions(server.certificate, server.key))


@pytest.mark.parametrize(("proxy", "tls", "web"), COMBINATIONS)
async def test_all_combinations(
    proxy: bool, tls: bool, web: bool, authority: Authority, context: ssl.SSLContext
) -> None:
    options = StackOptions(
        proxy=(ipaddress.ip_network("127.0.0.1/32"),) if proxy else None,
        tls_context=context if tls else None,
        handshakes=Handshakes(1) if tls else None,
        websocket=WebSocketOptions() if web else None,
    )
    async with placed(options, echo=True) as place:
        client = await dialled(place, proxy=proxy, tls=authority.client_context() if tls else None)
        if web:
            await client.send(request())
            assert b" 101 " in await head(client)
        await client.send(frame(b"hello") if web else b"hello")
        if web:
            assert (await next_frame(client))[1] == b"hello"
        else:
            assert await client.get(5) == b"hello"
        upper = await place.upper()
        about = upper.transport.get_extra_info
        assert upper.peers == ([("192.0.2.7", 56324)] if proxy else [])
        assert (about("peername") == ("192.0.2.7", 56324)) == proxy
        assert (about("tls_version") == "TLSv1.3") == tls
        assert (about("websocket") == "mqtt") == web
        assert upper.transport.get_write_buffer_size() == 0
        assert upper.transport.get_write_buffer_limits()[1] > 0
        upper.transport.close()
        if web:
            assert (await next_frame(client))[0] == 8
            await client.send(frame(b"\x03\xe8", 8))  # type: ignore[arg-type]
        assert await client.rest() == b""
        assert await upper.ended() is None


async def dialled(place: Place, *, proxy: bool, tls: ssl.SSLContext | None) -> Client:
    client = await place.dial()
    if proxy:
        await client.send(HEADER)
    if tls is not None:
        await client.writer.start_tls(tls, server_hostname="localhost")
    return client


def test_without_stages_the_connection_is_used_directly() -> None:
    upper = Upper()
    assert build_stack(upper, StackOptions()) is upper
