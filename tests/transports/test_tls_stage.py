"""TLS: real handshakes and traffic over real sockets, on both event loops."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.certs import Authority
from harness.waiting import happens
from upper import Client, Place, Upper, placed, tls_options

from actors.transports.handshakes import HandshakeError, Handshakes
from actors.transports.stack import StackOptions
from actors.transports.tls import TlsStage
from actors.transports.tls_context import TlsOptions, make_context

pytestmark = pytest.mark.system

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def options(authority: Authority) -> TlsOptions:
    server = authority.server()
    return TlsOptions(server.certificate, server.key)


def failed(place: Place) -> dict[str, int]:
    assert place.options.handshakes is not None
    return dict(place.options.handshakes.stats.failed)


async def failure(place: Place) -> str:
    """The kind of the error with which the handshake of the first client ended."""
    error = await (await place.upper()).ended()
    assert isinstance(error, HandshakeError)
    return error.kind


@contextlib.asynccontextmanager
async def connected(
    authority: Authority, options: TlsOptions, first: bytes
) -> AsyncIterator[tuple[Client, Upper]]:
    """A client that has sent its first bytes, and the connection above, which got them."""
    async with placed(tls_options(make_context(options))) as place:
        client = await place.dial(authority.client_context())
        await client.send(first)
        upper = await place.upper()
        await upper.got(first)
        yield client, upper


def in_memory(
    context: ssl.SSLContext, *, begun: bool = False
) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A client without a socket; if it has ``begun``, its hello is in the second buffer."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    if begun:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
    return tls, incoming, outgoing


async def shake_hands(
    client: Client, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Complete the handshake of a client without a socket; its last message is not sent yet."""
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await client.send(outgoing.read())
            incoming.write(await client.reader.read(65536))
        else:
            return


async def test_data_flows_both_ways(authority: Authority, options: TlsOptions) -> None:
    async with placed(tls_options(make_context(options)), echo=True) as place:
        client = await place.dial(authority.client_context())
        await client.send(b"hello")
        assert await client.get(5) == b"hello"
        upper = await place.upper()
        assert upper.transport.get_extra_info("tls_version") == "TLSv1.3"
        assert upper.transport.get_extra_info("cipher")[2] >= 128
        assert upper.transport.get_extra_info("peercert") is None
        assert upper.transport.get_extra_info("peername") == client.writer.get_extra_info(
            "sockname"
        )
        assert upper.transport.get_extra_info("socket") is not None
        await client.close()
        assert await upper.ended() is None
        assert upper.eof
        assert place.options.handshakes is not None
        assert place.options.handshakes.stats.handshakes == 1
        assert place.options.handshakes.stats.cpu_seconds > 0


async def test_much_data_flows_both_ways(authority: Authority, options: TlsOptions) -> None:
    data = os.urandom(3 * MIB)
    async with placed(tls_options(make_context(options)), echo=True) as place:
        client = await place.dial(authority.client_context())
        sending = asyncio.create_task(client.send(data))
        assert await client.get(len(data)) == data
        await sending
        upper = await place.upper()
        # Many records came up in one piece.
        assert upper.reads < len(data) / (16 * 1024)


async def test_small_writes_of_one_turn_go_out_together(
    authority: Authority, options: TlsOptions
) -> None:
    async with connected(authority, options, b"x") as (client, upper):
        for number in range(100):
            upper.transport.write(b"%02d" % number)
        assert upper.transport.get_write_buffer_size() == 200
        assert await client.get(200) == b"".join(b"%02d" % number for number in range(100))
        assert upper.transport.get_write_buffer_size() == 0
        upper.transport.writelines([b"a", b"b"])
        upper.transport.close()
        assert upper.transport.is_closing()
        upper.transport.write(b"too late")
        # It ends with a TLS close_notify, which distinguishes an end from a cut.
        async with asyncio.timeout(10):
            assert await client.reader.read() == b"ab"
        assert await upper.ended() is None


async def test_bytes_at_the_end_of_the_handshake_are_not_lost(
    authority: Authority, options: TlsOptions
) -> None:
    """A client of TLS 1.3 may send its CONNECT together with its Finished."""
    async with placed(tls_options(make_context(options))) as place:
        tls, incoming, outgoing = in_memory(authority.client_context())
        plain = await place.dial()
        await shake_hands(plain, tls, incoming, outgoing)
        tls.write(b"CONNECT and ")
        tls.write(b"more")
        await plain.send(outgoing.read())
        upper = await place.upper()
        await upper.got(b"CONNECT and more")
        assert upper.reads == 1


async def test_a_handshake_that_dribbles_is_work_only_when_it_is_whole(
    authority: Authority, options: TlsOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    take = Handshakes.step

    def counting(*args: object, **kwargs: object) -> bool:
        nonlocal steps
        steps += 1
        return take(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Handshakes, "step", counting)
    async with placed(tls_options(make_context(options)), echo=True) as place:
        tls, incoming, outgoing = in_memory(authority.client_context(), begun=True)
        plain = await place.dial()
        hello = outgoing.read()
        for at in range(len(hello)):
            await plain.send(hello[at : at + 1])
            await asyncio.sleep(0)
        incoming.write(await plain.reader.read(65536))
        await shake_hands(plain, tls, incoming, outgoing)
        await plain.send(outgoing.read())
        tls.write(b"through")
        await plain.send(outgoing.read())
        await (await place.upper()).got(b"through")
        assert steps == 2


async def test_a_client_without_tls_is_closed_at_once(options: TlsOptions) -> None:
    async with placed(tls_options(make_context(options))) as place:
        client = await place.dial()
        await client.send(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c")
        assert await client.rest() == b""
        assert await failure(place) == "plaintext"
        assert failed(place) == {"plaintext": 1}


async def test_old_versions_are_refused(authority: Authority, options: TlsOptions) -> None:
    async with placed(tls_options(make_context(options))) as place:
        client = authority.client_context()
        client.minimum_version = ssl.TLSVersion.TLSv1_2  # Debian's Python offers older ones
        _, _, outgoing = in_memory(client, begun=True)
        # The same hello, of a client that knows nothing newer than TLS 1.1.
        hello = bytearray(outgoing.read())
        hello[9:11] = b"\x03\x02"
        versions = hello.find(b"\x00\x2b\x00\x05\x04\x03\x04\x03\x03")
        assert versions > 0
        hello[versions + 1] = 0xFF
        plain = await place.dial()
        await plain.send(bytes(hello))
        assert (await plain.rest())[:1] == b"\x15"  # an alert says why
        assert await failure(place) == "version"


async def test_tls_1_2_is_spoken_and_not_below_a_higher_minimum(
    authority: Authority, options: TlsOptions
) -> None:
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with placed(tls_options(make_context(options)), echo=True) as place:
        client = await place.dial(old)
        await client.send(b"old")
        assert await client.get(3) == b"old"
        assert (await place.upper()).transport.get_extra_info("tls_version") == "TLSv1.2"
        await client.close()
    newer = TlsOptions(options.certificate, options.key, minimum_version="1.3")
    async with placed(tls_options(make_context(newer))) as place:
        with pytest.raises(ssl.SSLError):
            await place.dial(old)
        await (await place.upper()).ended()
        assert failed(place) == {"version": 1}


async def test_an_alert_of_an_untrusting_client_is_reported(options: TlsOptions) -> None:
    async with placed(tls_options(make_context(options))) as place:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(visit, place.port, ssl.create_default_context(), None)
        assert await failure(place) == "client_refused"
        assert "unknown ca" in str(place.uppers[0].lost[0])


@pytest.mark.parametrize(
    ("which", "kind"),
    [("none", "no_certificate"), ("foreign", "certificate"), ("expired", "certificate"),
     ("revoked", "certificate")],
)  # fmt: skip
async def test_client_certificates_that_are_refused(
    which: str, kind: str, authority: Authority, options: TlsOptions, tmp_path: Path
) -> None:
    revoked = authority.client("revoked")
    shown = {
        "none": lambda: None,
        "foreign": lambda: Authority(tmp_path / "foreign").client("foreign"),
        "expired": lambda: authority.client("expired", expired=True),
        "revoked": lambda: revoked,
    }[which]()
    asked = TlsOptions(
        options.certificate,
        options.key,
        client_certificates="required",
        client_ca=authority.file,
        crl=authority.revoke(revoked),
    )
    async with placed(tls_options(make_context(asked)), echo=True) as place:
        # With TLS 1.3 the client learns of it only when it reads.
        client = await place.dial(authority.client_context(shown))
        assert await client.rest() == b""
        assert await failure(place) == kind
        assert failed(place) == {kind: 1}
        assert not (await place.upper()).data


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_client_certificates_that_are_taken(
    mode: str, authority: Authority, options: TlsOptions
) -> None:
    asked = TlsOptions(
        options.certificate,
        options.key,
        client_certificates=mode,  # type: ignore[arg-type]
        client_ca=authority.file,
        crl=authority.revoke(),
    )
    async with placed(tls_options(make_context(asked)), echo=True) as place:
        client = await place.dial(authority.client_context(authority.client("alice")))
        await client.send(b"me")
        assert await client.get(2) == b"me"
        peercert = (await place.upper()).transport.get_extra_info("peercert")
        assert peercert["subject"] == ((("commonName", "alice"),),)
        await client.close()
        if mode == "optional":
            client = await place.dial(authority.client_context())
            await client.send(b"me")
            assert await client.get(2) == b"me"
            assert (await place.upper(1)).transport.get_extra_info("peercert") is None


async def test_sessions_are_resumed_until_the_context_is_a_new_one(
    authority: Authority, options: TlsOptions
) -> None:
    place_options = tls_options(make_context(options))
    handshakes = place_options.handshakes
    assert handshakes is not None
    async with placed(place_options, echo=True) as place:
        trusting = authority.client_context()
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # its sessions are there at once
        first = await asyncio.to_thread(visit, place.port, trusting, None)
        second = await asyncio.to_thread(visit, place.port, trusting, first)
        assert (handshakes.stats.handshakes, handshakes.stats.resumed) == (2, 1)
        place.options = StackOptions(tls_context=make_context(options), handshakes=handshakes)
        await asyncio.to_thread(visit, place.port, trusting, second)
        assert (handshakes.stats.handshakes, handshakes.stats.resumed) == (3, 1)


def visit(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLSession | None:
    """One short connection with a blocking socket; gives the session to go on with."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
    ):
        tls.sendall(b"x")
        assert tls.recv(1) == b"x"
        return tls.session


async def test_a_handshake_that_takes_too_long_is_ended(options: TlsOptions) -> None:
    async with placed(tls_options(make_context(options), tls_timeout=0.05)) as place:
        client = await place.dial()
        await client.send(b"\x16\x03\x01")
        assert await client.rest() == b""
        assert await failure(place) == "timeout"


async def test_too_many_waiting_handshakes_are_refused(
    authority: Authority, options: TlsOptions
) -> None:
    place_options = tls_options(make_context(options))
    assert place_options.handshakes is not None
    place_options.handshakes.close()
    async with placed(place_options) as place:
        with pytest.raises((ssl.SSLError, OSError)):
            await place.dial(authority.client_context())
        assert await failure(place) == "busy"


async def test_many_come_at_once(authority: Authority, options: TlsOptions) -> None:
    trusting = authority.client_context()
    async with placed(tls_options(make_context(options)), echo=True) as place:
        clients = await asyncio.gather(*(place.dial(trusting) for _ in range(100)))
        for client in clients:
            client.writer.write(b"hello")
        for client in clients:
            assert await client.get(5) == b"hello"
            client.writer.close()
        assert place.options.handshakes is not None
        assert place.options.handshakes.stats.handshakes == 100
        assert place.options.handshakes.waiting == 0


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_the_upper_layer_may_close_within_the_handshake(
    end: str, options: TlsOptions
) -> None:
    async with placed(tls_options(make_context(options))) as place:
        client = await place.dial()
        await client.send(b"\x16\x03\x01\x02")
        upper = await place.upper()
        getattr(upper.transport, end)()
        assert upper.transport.is_closing()
        assert await client.rest() == b""
        assert isinstance(await upper.ended(), HandshakeError)
        assert failed(place) == {"closed": 1}


async def test_a_client_may_leave_within_the_handshake(
    authority: Authority, options: TlsOptions
) -> None:
    async with placed(tls_options(make_context(options))) as place:
        _, _, outgoing = in_memory(authority.client_context(), begun=True)
        client = await place.dial()
        await client.send(outgoing.read())
        await client.close()
        assert isinstance(await (await place.upper()).ended(), HandshakeError)
        assert failed(place) == {"closed": 1}


async def test_a_client_may_leave_right_behind_its_handshake(
    authority: Authority, options: TlsOptions
) -> None:
    """What it sent counts, as on a plain socket."""
    async with placed(tls_options(make_context(options))) as place:
        tls, incoming, outgoing = in_memory(authority.client_context())
        plain = await place.dial()
        await shake_hands(plain, tls, incoming, outgoing)
        tls.write(b"fire and forget")
        plain.writer.write(outgoing.read())
        plain.writer.write_eof()
        upper = await place.upper()
        await upper.got(b"fire and forget")
        await upper.ended()
        assert upper.eof


async def test_a_cut_in_the_middle_of_a_record(authority: Authority, options: TlsOptions) -> None:
    async with connected(authority, options, b"whole") as (client, upper):
        raw = client.writer.get_extra_info("socket").dup()
        raw.send(b"\x17\x03\x03\x00\x40half a record")
        raw.shutdown(socket.SHUT_WR)
        await upper.ended()
        assert bytes(upper.data) == b"whole"
        raw.close()


async def test_a_damaged_record_ends_it(authority: Authority, options: TlsOptions) -> None:
    async with connected(authority, options, b"whole") as (client, upper):
        with client.writer.get_extra_info("socket").dup() as raw:
            raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
            error = await upper.ended()
        assert isinstance(error, ConnectionError)
        assert "bad record mac" in str(error).lower().replace("_", " ")


async def test_nothing_is_read_while_paused(authority: Authority, options: TlsOptions) -> None:
    async with connected(authority, options, b"1") as (client, upper):
        upper.transport.pause_reading()
        upper.transport.pause_reading()
        assert not upper.transport.is_reading()
        data = os.urandom(8 * MIB)
        sending = asyncio.create_task(client.send(data))
        await asyncio.sleep(0.02)
        assert isinstance(upper.transport, TlsStage)
        assert not upper.transport.lower.is_reading()
        assert len(upper.data) == 1
        upper.transport.resume_reading()
        assert upper.transport.is_reading()
        await upper.got(b"1" + data)
        await sending


async def test_paused_within_the_handshake(authority: Authority, options: TlsOptions) -> None:
    """The handshake may be finished, but nothing comes up."""
    async with placed(tls_options(make_context(options))) as place:
        plain = await place.dial()
        upper = await place.upper()
        upper.transport.pause_reading()
        tls, incoming, outgoing = in_memory(authority.client_context())
        await shake_hands(plain, tls, incoming, outgoing)
        tls.write(b"early")
        await plain.send(outgoing.read())
        stats = place.options.handshakes.stats  # type: ignore[union-attr]
        await happens(lambda: stats.handshakes == 1, "the handshake")
        await asyncio.sleep(0.02)
        assert not upper.data
        upper.transport.resume_reading()
        await upper.got(b"early")


async def test_a_client_that_does_not_read(authority: Authority, options: TlsOptions) -> None:
    async with connected(authority, options, b"1") as (client, upper):
        client.reader._limit = 1024  # type: ignore[attr-defined] # so that it stops to read
        upper.transport.set_write_buffer_limits(high=256 * 1024)
        sent = 0
        while upper.writable:
            upper.transport.write(bytes(128 * 1024))
            sent += 128 * 1024
            await asyncio.sleep(0)
            assert sent < 64 * MIB, "nobody said that the client does not read"
        assert upper.transport.get_write_buffer_size() > 256 * 1024
        client.reader._limit = 2**24  # type: ignore[attr-defined]
        assert await client.get(sent) == bytes(sent)
        await happens(lambda: upper.writable, "room")
        upper.transport.abort()
        await upper.ended()


def test_renegotiation_is_off(options: TlsOptions) -> None:
    context = make_context(options)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
