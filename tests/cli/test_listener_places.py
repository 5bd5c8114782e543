"""The addresses of listeners are checked before anything is started."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cli.common.units import Address
from cli.serve.listener_factory import Listeners
from cli.settings.settings import Settings, load_settings
from cli.settings.socket_binding import ListenError, bind

pytestmark = pytest.mark.system


def listening(*places: str, **more: object) -> Settings:
    return load_settings({"listen": list(places), **more}, {})


def probed(settings: Settings) -> str:
    listeners = Listeners(settings)
    try:
        with pytest.raises(ListenError) as raised:
            listeners.probe(settings)
    finally:
        listeners.close()
    assert raised.value.exit_code == 69
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Listeners]:
    listeners = Listeners(listening(f"unix:{tmp_path}/s"))
    yield listeners
    listeners.close()


def test_an_address_that_a_program_has(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        assert "another program is listening there" in probed(listening(f"127.0.0.1:{port}"))


def test_an_address_within_that_of_another_listener(port: int) -> None:
    places = (f"0.0.0.0:{port}", f"ws://127.0.0.1:{port}")
    message = probed(listening(*places, allow_anonymous=True))
    assert message == (
        f"cannot listen on ws://127.0.0.1:{port}: it conflicts with another listener of this broker"
    )


def test_nothing_is_held_after_the_probe(port: int) -> None:
    settings = listening(f"127.0.0.1:{port}", "127.0.0.1:0", "ws://127.0.0.1:0")
    listeners = Listeners(settings)
    listeners.probe(settings)
    listeners.probe(settings)
    listeners.close()


def test_all_addresses_of_ipv6_are_also_those_of_ipv4() -> None:
    """``[::]``, in sockets of their own: no client has an IPv4-mapped address."""
    try:
        bound = bind(Address("::", 0), "--listen")
    except ListenError:
        pytest.skip("there is no IPv6")
    with contextlib.ExitStack() as held:
        for one in bound:
            held.enter_context(one)
        port = bound[0].getsockname()[1]
        assert [one.getsockname()[:2] for one in bound] == [("::", port), ("0.0.0.0", port)]
        for host, listener in (("::1", bound[0]), ("127.0.0.1", bound[1])):
            with socket.create_connection((host, port)):
                client, address = listener.accept()
                client.close()
                assert address[0] == host


def test_a_name_that_is_none() -> None:
    message = probed(listening("a..b:1", allow_anonymous=True))
    assert message.endswith("the host name cannot be resolved")


def test_a_unix_socket_without_its_directory(tmp_path: Path) -> None:
    message = probed(listening(f"unix:{tmp_path}/gone/s"))
    assert message.endswith(f"the directory {tmp_path}/gone does not exist")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_unix_socket_where_nothing_may_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert f"permission denied in {tmp_path}" in probed(listening(f"unix:{tmp_path}/s"))


def test_a_reload_changes_the_mode_of_a_unix_socket(made: Listeners, tmp_path: Path) -> None:
    path = tmp_path / "s"
    _, (bound,) = made.bind(listening(f"unix:{path}", unix_mode="660").listeners()[0])
    assert path.stat().st_mode & 0o777 == 0o660
    made.reloaded(listening(f"unix:{path}", unix_mode="600"))
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    with capture_logs() as lines:
        made.reloaded(listening(f"unix:{path}"))
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("file mode not changed", "No such file or directory")
    ]
    bound.close()
