"""The broker connection of ``foldmq pub`` and ``foldmq sub``, and refusals of the broker."""

import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import paho.mqtt.client as mqtt
from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from cli.clients.client_errors import (
    SENTENCES,
    BadArgumentError,
    ClientError,
    UnreachableError,
    connect_exit_code,
    reason_text,
)
from cli.clients.client_options import BrokerFlags
from cli.clients.client_session import ClientSession, ClientWill
from cli.common.units import Address
from eventstore.edited_files import unmarked_copy, unmarked_pair
from protocol.mqtt.reason_codes import FAILURE

CONNACK_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Target:
    """A broker: its address, transport and credentials."""

    address: Address
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    path: str | None = None
    """Path of the WebSocket; None: no WebSocket."""


_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_ENCRYPTED = ("mqtts", "wss")


def target_of(flags: BrokerFlags) -> Target:
    """Return the broker named by ``--url`` (``mqtt://user:password@host:port``) or by the rest.

    Raises BadArgumentError for an invalid URL or file.
    """
    host, port, url = flags.host, flags.port, flags.url
    username, password = flags.username, flags.password
    encrypted = any((flags.cafile, flags.cert, flags.key, flags.insecure))
    scheme = "mqtts" if encrypted else "mqtt"
    path = None
    if url is not None:
        expected = "--url must be mqtt://user:password@host:port, or mqtts://, ws://, wss://"
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # not shown, because it may contain a password
            raise BadArgumentError(expected) from None
        scheme = parts.scheme
        if scheme not in _PORTS or not parts.hostname:
            raise BadArgumentError(expected)
        try:
            port = parts.port or _PORTS[scheme]
        except ValueError:
            raise BadArgumentError("--url: the port must be a number from 1 to 65535") from None
        host = parts.hostname
        if scheme in ("ws", "wss"):
            path = parts.path or "/mqtt"
        elif parts.path.strip("/"):
            raise BadArgumentError(expected)
        username = urllib.parse.unquote(parts.username) if parts.username else username
        password = urllib.parse.unquote(parts.password) if parts.password else password
    if password is not None and username is None:
        raise BadArgumentError("a password (-P or FOLDMQ_PASSWORD) needs a user name (-u)")
    if encrypted and scheme not in _ENCRYPTED:
        raise BadArgumentError(
            "--cafile, --cert, --key and --insecure need --url mqtts:// or wss://"
        )
    address = Address(host, _PORTS[scheme] if port is None else port)
    context = _context(flags) if scheme in _ENCRYPTED else None
    return Target(address, username, password, context, path)


def _context(flags: BrokerFlags) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if flags.insecure:
        context.check_hostname = False
    if flags.key is not None and flags.cert is None:
        raise BadArgumentError("--key needs --cert")
    named: Path | None = None
    try:
        if flags.cafile is not None:
            named = flags.cafile
            with unmarked_copy(flags.cafile) as authorities:
                context.load_verify_locations(authorities)
        if flags.cert is not None:
            named = flags.cert
            with unmarked_pair(flags.cert, flags.key) as (certificate, key):
                context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        reason = (
            "not a PEM file, or certificate and key do not match"
            if isinstance(error, ssl.SSLError)
            else None
        )
        raise BadArgumentError(f"{named}: {reason or error.strerror}") from None
    return context


def new_client(target: Target, session: ClientSession) -> mqtt.Client:
    """Return an MQTT client, not connected, with manual acknowledgements."""
    client = _PahoClient(
        CallbackAPIVersion.VERSION2,
        session.client_id or "",
        clean_session=None if session.level == 5 else not session.keep,
        protocol=MQTTProtocolVersion(session.level),
        reconnect_on_failure=False,
        manual_ack=True,
        transport="tcp" if target.path is None else "websockets",
    )
    if target.path is not None:
        client.ws_set_options(target.path)
    if target.tls is not None:
        client.tls_set_context(target.tls)
    if target.username is not None or target.password is not None:
        client.username_pw_set(target.username, target.password)
    if session.will is not None:
        _set_will(client, session.will, session.level)
    return client


class _PahoClient(mqtt.Client):
    """A client that ends a publication at a refusing PUBREC, which paho answers with PUBREL."""

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if len(packet) < 3 or packet[2] < FAILURE:
            return super()._handle_pubrec()
        code = ReasonCode(PacketTypes.PUBREC, identifier=packet[2])
        properties = properties_of(PacketTypes.PUBREC)
        if len(packet) > 3:
            properties.unpack(packet[3:])  # type: ignore[no-untyped-call]  # has no types
        mid = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            if mid not in self._out_messages:
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            return self._do_on_publish(mid, code, properties)


def _set_will(client: mqtt.Client, will: ClientWill, level: int) -> None:
    properties = None
    if level == 5:
        properties = properties_of(PacketTypes.WILLMESSAGE, will.properties)
    client.will_set(will.topic, will.payload, will.qos, will.retain, properties)


_NOTHING: Mapping[str, object] = {}


def properties_of(packet: int, values: Mapping[str, object] = _NOTHING) -> Properties:
    """Return the properties of a packet, without those that are None."""
    properties = Properties(packet)  # type: ignore[no-untyped-call]  # has no types
    for name, value in values.items():
        if value is not None:
            setattr(properties, name, [*value] if isinstance(value, tuple) else value)
    return properties


def _connect_values(session: ClientSession) -> dict[str, object]:
    return {
        "SessionExpiryInterval": session.expiry,
        "ReceiveMaximum": session.receive_maximum,
        "UserProperty": session.user or None,
    }


def connect(
    client: mqtt.Client,
    target: Target,
    session: ClientSession,
    *,
    again: bool = False,
) -> None:
    """Open the connection and send CONNECT; ``again``: after a lost connection.

    Raises UnreachableError if a later attempt may succeed, another ClientError if not.
    """
    clean: bool | Literal[3] = MQTT_CLEAN_START_FIRST_ONLY
    properties = None
    if session.level == 5:
        clean = not (session.keep or (again and session.expiry))
        properties = properties_of(PacketTypes.CONNECT, _connect_values(session))
    try:
        client.connect(
            target.address.host, target.address.port, clean_start=clean, properties=properties
        )
    except mqtt.WebsocketConnectionError as error:
        raise ClientError(
            f"{target.address} does not accept MQTT over WebSocket: {error}"
        ) from None
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise ClientError(
            f"the certificate of {target.address} is not trusted: {reason} (see --cafile)"
        ) from None
    except OSError as error:
        lasting = isinstance(error, ssl.SSLError) or (
            isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        )
        reason = error.strerror or str(error)
        kind = ClientError if lasting else UnreachableError
        raise kind(f"cannot connect to {target.address}: {reason}") from None
    except ValueError:  # a label of the host name is invalid, or the port is 0
        raise BadArgumentError(f"{target.address} is not a valid host and port") from None


def refusal(
    target: Target, code: ReasonCode, properties: Properties | None, level: int
) -> ClientError:
    """Return the error for a refusing CONNACK; the exit code is its return code in MQTT 3.1.1."""
    why = broker_reason(code, properties) if level == 5 else SENTENCES[code.value]
    return ClientError(
        f"{target.address} refused the connection: {why}", connect_exit_code(code.value)
    )


def broker_reason(code: ReasonCode, properties: Properties | None) -> str:
    """Return the meaning of a reason code, with the broker's reason string if it sent one."""
    return reason_text(code.value, getattr(properties, "ReasonString", None))
