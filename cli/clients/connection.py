"""What ``foldmq pub`` and ``foldmq sub`` share: connecting to a broker, and its refusals."""

import socket
import ssl
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from cli.common import Address
from protocol.errors import FoldmqError

CONNACK_TIMEOUT = 10.0  # seconds

# Return codes of MQTT 3.1.1 (table 3.1) by the MQTT 5 reason codes that paho maps them to.
_RETURN_CODES = {132: 1, 133: 2, 136: 3, 134: 4, 135: 5}


class ClientError(FoldmqError):
    """The broker cannot be reached, refuses the connection, or closes it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnreachableError(ClientError):
    """The broker cannot be reached now; a later attempt may succeed."""


class BadArgumentError(ClientError):
    """An argument is invalid."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


@dataclass(frozen=True, slots=True)
class Target:
    """A broker: its address, transport and credentials."""

    address: Address
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    path: str | None = None
    """Path of the WebSocket; None: no WebSocket."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for TLS in PEM; any of them enables TLS."""

    ca: Path | None = None
    """CA certificates to verify the broker against; None: those of the system."""
    cert: Path | None = None
    """Client certificate."""
    key: Path | None = None
    insecure: bool = False
    """Do not verify that the certificate matches the host name."""


_NO_FILES = TlsFiles()
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_ENCRYPTED = ("mqtts", "wss")


def find_target(
    host: str,
    port: int | None,
    username: str | None,
    password: str | None,
    url: str | None,
    files: TlsFiles = _NO_FILES,
) -> Target:
    """Return the broker named by ``url`` (``mqtt://user:password@host:port``) or by the rest.

    Raises BadArgumentError for an invalid URL or file.
    """
    scheme = "mqtts" if files != _NO_FILES else "mqtt"
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
    if files != _NO_FILES and scheme not in _ENCRYPTED:
        raise BadArgumentError(
            "--cafile, --cert, --key and --insecure need --url mqtts:// or wss://"
        )
    address = Address(host, _PORTS[scheme] if port is None else port)
    context = _context(files) if scheme in _ENCRYPTED else None
    return Target(address, username, password, context, path)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if files.insecure:
        context.check_hostname = False
    if files.key is not None and files.cert is None:
        raise BadArgumentError("--key needs --cert")
    named: Path | None = None
    try:
        if files.ca is not None:
            named = files.ca
            context.load_verify_locations(files.ca)
        if files.cert is not None:
            named = files.cert
            context.load_cert_chain(files.cert, files.key)
    except OSError as error:  # ssl.SSLError is one
        reason = (
            "not a PEM file, or certificate and key do not match"
            if isinstance(error, ssl.SSLError)
            else None
        )
        raise BadArgumentError(f"{named}: {reason or error.strerror}") from None
    return context


def new_client(
    target: Target, client_id: str | None, *, persistent: bool, reconnect: bool
) -> mqtt.Client:
    """Return an MQTT 3.1.1 client, not connected, that acknowledges messages only when told to.

    Raises BadArgumentError for a persistent session without a client ID.
    """
    if persistent and not client_id:
        raise BadArgumentError("-c needs a client ID (-i)")
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id or "",
        clean_session=not persistent,
        reconnect_on_failure=reconnect,
        manual_ack=True,
        transport="tcp" if target.path is None else "websockets",
    )
    if target.path is not None:
        client.ws_set_options(target.path)
    if target.tls is not None:
        client.tls_set_context(target.tls)
    if target.username is not None:
        client.username_pw_set(target.username, target.password)
    return client


def connect(client: mqtt.Client, target: Target) -> None:
    """Open the connection and send CONNECT.

    Raises UnreachableError if a later attempt may succeed, another ClientError if not.
    """
    try:
        client.connect(target.address.host, target.address.port)
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


def refusal(target: Target, code: ReasonCode) -> ClientError:
    """Return the error for a refusing CONNACK; the exit code is its return code."""
    return ClientError(
        f"{target.address} refused the connection: {str(code).lower()}",
        _RETURN_CODES.get(code.value, 1),
    )
