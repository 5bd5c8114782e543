"""A broker with every kind of listener, and clients for each of them."""

import queue
import ssl
from pathlib import Path
from typing import Any, Literal, Self

import paho.mqtt.client as paho
from harness.broker import Broker, free_port
from harness.certs import Authority

Transport = Literal["tcp", "tls", "ws", "wss", "unix"]
TRANSPORTS: tuple[Transport, ...] = ("tcp", "tls", "ws", "wss", "unix")
TIMEOUT = 15.0


class Place:
    """The broker, the authority that its clients trust, and where it listens."""

    def __init__(self, directory: Path, processes: int = 1) -> None:
        self.processes = processes
        self.authority = Authority(directory / "authority")
        self.server = self.authority.server()
        self.revoked = self.authority.client("mallory")
        self.broker = Broker(directory, forked=True)
        self.ports = {
            "tcp": self.broker.port,
            **{name: free_port() for name in ("tls", "ws", "wss", "mutual", "proxied")},
        }
        # Not in the directory of the test, whose name may be too long for a socket.
        self.socket = str(directory / "s")
        self.broker.configure(self._settings())

    def start(self) -> None:
        """Start the broker; the ports are then those at which it listens."""
        self.broker.start()
        moved = self.broker.moved
        self.ports = {name: moved.get(port, port) for name, port in self.ports.items()}

    def _settings(self) -> str:
        at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        crl = self.authority.revoke(self.revoked)
        return f"""
log_format = "json"
processes = {self.processes}
metrics = "127.0.0.1:0"
tls_cert = "{self.server.certificate}"
tls_key = "{self.server.key}"
[[listen]]
address = "{at["tcp"]}"
[[listen]]
address = "tls://{at["tls"]}"
[[listen]]
address = "ws://{at["ws"]}"
[[listen]]
address = "wss://{at["wss"]}"
[[listen]]
address = "unix:{self.socket}"
[[listen]]
address = "tls://{at["mutual"]}"
tls_client_certs = "required"
tls_client_ca = "{self.authority.file}"
tls_crl = "{crl}"
tls_identity = "cn"
allow_anonymous = false
[[listen]]
address = "{at["proxied"]}"
proxy_protocol = true
proxy_from = ["127.0.0.1"]
allow_anonymous = true
"""

    def url(self, transport: str) -> str:
        """Where MQTT.js finds the broker."""
        scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(transport, transport)
        path = "/mqtt" if transport in ("ws", "wss") else ""
        return f"{scheme}://localhost:{self.ports[transport]}{path}"


class Client:
    """A paho client over any transport; its callbacks become things to wait for."""

    def __init__(
        self,
        place: Place,
        transport: str,
        client_id: str,
        *,
        context: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connected: queue.Queue[bool] = queue.Queue()
        self.lost: queue.Queue[object] = queue.Queue()
        self._granted: queue.Queue[list[Any]] = queue.Queue()
        kind = {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(transport, "tcp")
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            transport=kind,  # type: ignore[arg-type]
            reconnect_on_failure=False,
            **options,
        )
        if kind == "websockets":
            self.paho.ws_set_options(path="/mqtt")
        if transport in ("tls", "wss", "mutual"):
            self.paho.tls_set_context(context or place.authority.client_context())
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_connect = lambda _c, _u, _f, reason, _p: self.connected.put(
            not reason.is_failure
        )
        self.paho.on_disconnect = lambda _c, _u, _f, reason, _p: self.lost.put(reason)
        self.paho.on_subscribe = lambda _c, _u, _m, reasons, _p: self._granted.put(reasons)
        if transport == "unix":
            self.paho.connect(place.socket)
        else:
            self.paho.connect("localhost", place.ports[transport])
        self.paho.loop_start()

    def __enter__(self) -> Self:
        assert self.connected.get(timeout=TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self.paho.subscribe(topic_filter, qos)
        (reason,) = self._granted.get(timeout=TIMEOUT)
        assert reason.value == qos

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        info = self.paho.publish(topic, payload, qos)
        info.wait_for_publish(TIMEOUT)
        assert info.is_published()

    def expect(self, topic: str, payload: bytes, qos: int = 1) -> None:
        message = self.messages.get(timeout=TIMEOUT)
        assert (message.topic, message.qos) == (topic, qos)
        assert message.payload == payload
