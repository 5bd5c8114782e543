"""The recipe for HAProxy and nginx: each passes on the address of the client, in all ways."""

import queue
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from harness import packets
from harness.broker import free_port
from harness.certs import Authority
from harness.rawclient import RawClient
from harness.waiting import until

from recipes.recipefiles import (
    PASSWORD,
    RECIPES,
    RecipeBroker,
    adapted,
    addresses,
    broker_of,
    program,
)

CLIENT = "127.0.0.2"
"""The address of a client; the proxy's is 127.0.0.1, from which foldmq accepts other addresses."""
TIMEOUT = 20.0
STREAM_MODULE = Path("/usr/share/nginx/modules/ngx_stream_module.so")
PORTS = ("1883", "8883", "443")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RecipeBroker]:
    port, websocket = free_port(), free_port()
    changes = {":1884": f":{port}", ":8080": f":{websocket}"}
    made = broker_of(tmp_path / "foldmq", "proxy", changes, ("ann",), port=port)
    made.websocket = websocket  # type: ignore[attr-defined]
    made.start()
    yield made
    made.clean_up()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def backends(broker: Any) -> dict[str, str]:
    """The ports of the broker, by those of the recipe."""
    moved = broker.moved
    return {
        "127.0.0.1:1884": f"127.0.0.1:{broker.port}",
        "127.0.0.1:8080": f"127.0.0.1:{moved.get(broker.websocket, broker.websocket)}",
    }


@contextmanager
def running(command: list[str], ports: dict[str, int], log: Path) -> Iterator[dict[str, int]]:
    """A proxy that listens at the ports."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or all(map(listens, ports.values())), "the proxy")
        assert process.poll() is None, log.read_text()
        yield ports
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(params=["haproxy", "nginx"])
def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, broker: RecipeBroker, authority: Authority
) -> Iterator[dict[str, int]]:
    """The ports of a proxy, by those of the recipe."""
    ports = {name: free_port() for name in PORTS}
    server = authority.server()
    if request.param == "haproxy":
        command = program("haproxy")
        both = tmp_path / "mqtt.pem"
        both.write_bytes(server.certificate.read_bytes() + server.key.read_bytes())
        binds = {f"bind :{name}": f"bind 127.0.0.1:{port}" for name, port in ports.items()}
        changes = {**backends(broker), **binds, "/etc/haproxy/mqtt.pem": str(both)}
        text = (RECIPES / "proxy" / "haproxy.cfg").read_text("utf-8")
        file = tmp_path / "haproxy.cfg"
        file.write_text(adapted(text, changes))
        arguments = [command, "-db", "-f", str(file)]
        checked = [command, "-c", "-f", str(file)]
    else:
        command = program("nginx")
        if not STREAM_MODULE.exists():
            pytest.skip("libnginx-mod-stream is not installed")
        listens_at = {f"listen {name}": f"listen 127.0.0.1:{port}" for name, port in ports.items()}
        files = {
            "/etc/nginx/mqtt.pem": str(server.certificate),
            "/etc/nginx/mqtt.key": str(server.key),
        }
        text = (RECIPES / "proxy" / "nginx.conf").read_text("utf-8")
        file = tmp_path / "nginx.conf"
        # What Debian sets when nginx is built or started.
        own = f"daemon off; pid {tmp_path}/nginx.pid; error_log stderr;\n"
        folders = "".join(
            f"    {kind}_temp_path {tmp_path}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = adapted(text, {**backends(broker), **listens_at, **files})
        file.write_text(
            own + adapted(text, {"http {\n": "http {\n    access_log off;\n" + folders})
        )
        arguments = [command, "-c", str(file)]
        checked = [command, "-t", "-c", str(file)]
    found = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    with running(arguments, ports, tmp_path / "proxy.log") as running_ports:
        yield running_ports


def exchange(
    client_id: str, port: int, authority: Authority, *, tls: bool, headers: dict[str, str] | None
) -> bytes:
    """Connects from another address, publishes and returns what comes back."""
    received: queue.Queue[bytes] = queue.Queue()
    granted: queue.Queue[Any] = queue.Queue()
    websocket = headers is not None
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id,
        transport="websockets" if websocket else "tcp",
        reconnect_on_failure=False,
    )
    client.username_pw_set("ann", PASSWORD)
    if headers is not None:
        client.ws_set_options("/mqtt", lambda given: {**given, **headers})
    if tls:
        client.tls_set_context(authority.client_context())
    client.on_message = lambda _c, _u, message: received.put(bytes(message.payload))
    client.on_subscribe = lambda _c, _u, _m, reasons, _p: granted.put(reasons[0].value)
    client.on_connect = lambda inner, *_: inner.subscribe(client_id, 1)
    client.connect("localhost", port, bind_address=CLIENT)
    client.loop_start()
    try:
        assert granted.get(timeout=TIMEOUT) == 1
        client.publish(client_id, b"through the proxy", 1)
        return received.get(timeout=TIMEOUT)
    finally:
        client.disconnect()
        client.loop_stop()


def test_the_broker_sees_the_address_of_the_client(
    proxy: dict[str, int], broker: RecipeBroker, authority: Authority
) -> None:
    for port, tls in (("1883", False), ("8883", True)):
        assert exchange(f"tcp{port}", proxy[port], authority, tls=tls, headers=None)
    # A client that invents addresses of others.
    invented = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.8"}
    for name, headers in (("plain", {}), ("invented", invented)):
        assert exchange(name, proxy["443"], authority, tls=True, headers=headers)
    seen = {name: address.rpartition(":")[0] for name, address in addresses(broker).items()}
    assert seen == dict.fromkeys(["tcp1883", "tcp8883", "plain", "invented"], CLIENT)


def test_a_client_beside_the_proxy_is_refused(broker: RecipeBroker) -> None:
    """A connection without the header of the PROXY protocol; the log has the word of the page."""
    with RawClient(broker.port) as direct:
        direct.send(packets.connect("direct"))
        direct.expect_closed()
    until(lambda: "PROXY" in broker.log, "the log line")
