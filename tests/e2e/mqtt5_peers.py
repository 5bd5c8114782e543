"""Real clients of MQTT 5 with one interface: paho in a thread, MQTT.js in a process of node."""

import json
import queue
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import paho.mqtt.client as paho
from harness.fixtures import unique
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

Transport = Literal["tcp", "ws"]
TIMEOUT = 30.0


@dataclass(frozen=True)
class Got:
    """A message as its receiver saw it; the names of properties are those of MQTT.js."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PeerWill:
    topic: str
    payload: bytes
    delay: int
    user: tuple[tuple[str, str], ...] = ()


class Peer(Protocol):
    """A client that is connected."""

    name: str
    session_present: bool

    def subscribe(
        self, topic_filter: str, qos: int = 0, identifier: int | None = None, **options: Any
    ) -> int:
        """Return the reason code of the SUBACK."""
        ...

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> None: ...

    def next(self) -> Got: ...

    def leave(self) -> None:
        """End the connection with DISCONNECT."""
        ...

    def vanish(self) -> None:
        """End the connection without DISCONNECT."""
        ...


_PAHO_NAMES = {
    "payloadFormatIndicator": "PayloadFormatIndicator",
    "messageExpiryInterval": "MessageExpiryInterval",
    "contentType": "ContentType",
    "responseTopic": "ResponseTopic",
    "correlationData": "CorrelationData",
    "topicAlias": "TopicAlias",
    "subscriptionIdentifier": "SubscriptionIdentifier",
    "userProperties": "UserProperty",
}


def paho_properties(packet: int, **values: Any) -> Properties:
    made = Properties(packet)
    for name, value in values.items():
        setattr(made, _PAHO_NAMES.get(name, name), value)
    return made


class PahoPeer:
    """paho."""

    def __init__(
        self,
        ports: dict[str, int],
        transport: Transport,
        name: str | None = None,
        *,
        clean: bool = True,
        expiry: int = 0,
        will: PeerWill | None = None,
    ) -> None:
        self.name = name or unique("paho")
        self._messages: queue.Queue[Got] = queue.Queue()
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            self.name,
            protocol=paho.MQTTv5,
            transport="tcp" if transport == "tcp" else "websockets",
            reconnect_on_failure=False,
        )
        self.client.on_message = lambda _c, _u, message: self._messages.put(_got(message))
        self.client.on_connect = lambda _c, _u, flags, reason, _p: self._events.put(
            ("connect", (reason.value, flags.session_present))
        )
        self.client.on_subscribe = lambda _c, _u, _m, reasons, _p: self._events.put(
            ("subscribe", [reason.value for reason in reasons])
        )
        self.client.on_disconnect = lambda *_: self._events.put(("disconnect", None))
        if will is not None:
            found = paho_properties(
                PacketTypes.WILLMESSAGE, WillDelayInterval=will.delay, UserProperty=[*will.user]
            )
            self.client.will_set(will.topic, will.payload, 1, properties=found)
        self.client.connect(
            "127.0.0.1",
            ports[transport],
            clean_start=clean,
            properties=paho_properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry),
        )
        self.client.loop_start()
        code, self.session_present = self._event("connect")
        assert code == 0

    def subscribe(
        self, topic_filter: str, qos: int = 0, identifier: int | None = None, **options: Any
    ) -> int:
        found = Properties(PacketTypes.SUBSCRIBE)
        if identifier is not None:
            found.SubscriptionIdentifier = identifier
        names = {"nl": "noLocal", "rap": "retainAsPublished", "rh": "retainHandling"}
        wanted = SubscribeOptions(qos, **{names[name]: value for name, value in options.items()})
        self.client.subscribe(topic_filter, options=wanted, properties=found)
        (code,) = self._event("subscribe")
        return int(code)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> None:
        found = paho_properties(PacketTypes.PUBLISH, **properties)
        info = self.client.publish(topic, payload, qos, retain, found)
        info.wait_for_publish(TIMEOUT)
        assert info.is_published()

    def next(self) -> Got:
        return self._messages.get(timeout=TIMEOUT)

    def leave(self) -> None:
        if self.client.is_connected():
            self.client.disconnect()
            self._event("disconnect")
        self.client.loop_stop()

    def vanish(self) -> None:
        self.client.loop_stop()
        sock = self.client.socket()
        assert sock is not None
        sock.close()

    def _event(self, name: str) -> Any:
        received, value = self._events.get(timeout=TIMEOUT)
        assert received == name
        return value


def _got(message: paho.MQTTMessage) -> Got:
    found = {
        name: getattr(message.properties, theirs)
        for name, theirs in _PAHO_NAMES.items()
        if hasattr(message.properties, theirs)
    }
    return Got(message.topic, bytes(message.payload), message.qos, message.retain, tidied(found))


def tidied(found: dict[str, Any]) -> dict[str, Any]:
    """Properties as both libraries show them."""
    identifiers = found.get("subscriptionIdentifier")
    if isinstance(identifiers, int):
        found["subscriptionIdentifier"] = [identifiers]
    if isinstance(found.get("correlationData"), str):
        found["correlationData"] = found["correlationData"].encode("latin-1")
    return found


class Node:
    """The process in which MQTT.js runs."""

    def __init__(self, package: Path, script: Path) -> None:
        self._process = subprocess.Popen(
            ["node", str(script), str(package)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._queues: dict[tuple[str, str], queue.Queue[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, name: str, what: str, *how: Any) -> Any:
        """Return what came of it; fails if the client says that it failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, what, *how]) + "\n")
        self._process.stdin.flush()
        came, value = self.heard(name, "answer").get(timeout=TIMEOUT)
        assert came == "done", value
        return value

    def heard(self, name: str, what: str) -> queue.Queue[Any]:
        with self._lock:
            return self._queues.setdefault((name, what), queue.Queue())

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, what, value = json.loads(line)
            if what in ("done", "failed"):
                self.heard(name, "answer").put((what, value))
            else:
                self.heard(name, what).put(value)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class JsPeer:
    """MQTT.js."""

    def __init__(
        self,
        node: Node,
        ports: dict[str, int],
        transport: Transport,
        name: str | None = None,
        *,
        clean: bool = True,
        expiry: int = 0,
        will: PeerWill | None = None,
    ) -> None:
        self.name = name or unique("js")
        self._handle = unique("handle")
        self._node = node
        options: dict[str, Any] = {
            "clientId": self.name,
            "clean": clean,
            "properties": {"sessionExpiryInterval": expiry},
        }
        if will is not None:
            options["will"] = {
                "topic": will.topic,
                "payload": will.payload.decode(),
                "qos": 1,
                # Of an empty object MQTT.js gets the length wrong.
                "properties": {
                    "willDelayInterval": will.delay,
                    **({"userProperties": _as_object(will.user)} if will.user else {}),
                },
            }
        place = f"127.0.0.1:{ports[transport]}"
        url = f"mqtt://{place}" if transport == "tcp" else f"ws://{place}/mqtt"
        self.session_present = bool(self._ask("connect", url, options))

    def subscribe(
        self, topic_filter: str, qos: int = 0, identifier: int | None = None, **options: Any
    ) -> int:
        more = {} if identifier is None else {"properties": {"subscriptionIdentifier": identifier}}
        wanted = {"qos": qos, **options, **more}
        (code,) = self._ask("subscribe", topic_filter, wanted)
        return int(code)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> None:
        if "userProperties" in properties:
            properties["userProperties"] = _as_object(properties["userProperties"])
        if "correlationData" in properties:
            properties["correlationData"] = properties["correlationData"].decode("latin-1")
        if "payloadFormatIndicator" in properties:
            properties["payloadFormatIndicator"] = bool(properties["payloadFormatIndicator"])
        options = {"qos": qos, "retain": retain, "properties": properties}
        self._ask("publish", topic, payload.decode(), options)

    def answer(self, topic_filter: str) -> None:
        """Answer requests with what they say, in capitals."""
        self._ask("answer", topic_filter)

    def next(self) -> Got:
        found = self._node.heard(self._handle, "message").get(timeout=TIMEOUT)
        users = found["properties"].get("userProperties")
        if users is not None:
            found["properties"]["userProperties"] = _as_pairs(users)
        if "payloadFormatIndicator" in found["properties"]:
            indicator = found["properties"]["payloadFormatIndicator"]
            found["properties"]["payloadFormatIndicator"] = int(indicator)
        return Got(
            found["topic"],
            found["payload"].encode("latin-1"),
            found["qos"],
            found["retain"],
            tidied(found["properties"]),
        )

    def leave(self) -> None:
        self._ask("leave")

    def vanish(self) -> None:
        self._ask("vanish")

    def _ask(self, what: str, *how: Any) -> Any:
        return self._node.ask(self._handle, what, *how)


def _as_object(pairs: Any) -> dict[str, list[str]]:
    """User properties as MQTT.js has them: in order for each name."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _as_pairs(users: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in users.items()
        for value in (values if isinstance(values, list) else [values])
    ]
