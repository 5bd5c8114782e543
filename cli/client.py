"""What ``foldmq pub`` and ``foldmq sub`` share: where the broker is and what a refusal means."""

import urllib.parse
from dataclasses import dataclass

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from cli.units import Address
from protocol.errors import FoldmqError

CONNACK_TIMEOUT = 10.0  # seconds

# The return codes of MQTT 3.1.1 (table 3.1) by the MQTT 5 reason codes that paho turns them into.
_RETURN_CODES = {132: 1, 133: 2, 136: 3, 134: 4, 135: 5}


class ClientError(FoldmqError):
    """The broker cannot be reached, refuses, or goes away."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BadArgumentError(ClientError):
    """An argument that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


@dataclass(frozen=True, slots=True)
class Target:
    """A broker and who connects to it."""

    address: Address
    username: str | None = None
    password: str | None = None


def find_target(
    host: str, port: int, username: str | None, password: str | None, url: str | None
) -> Target:
    """Give the broker named by ``url`` (``mqtt://user:password@host:port``) or by the rest.

    Raises BadArgumentError saying what is wrong with the URL.
    """
    if url is not None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port or 1883
        except ValueError:
            raise BadArgumentError(f"--url {url}: the port is not a number up to 65535") from None
        if parts.scheme != "mqtt" or not parts.hostname or parts.path.strip("/"):
            raise BadArgumentError("--url must look like mqtt://user:password@host:port")
        host = parts.hostname
        username = urllib.parse.unquote(parts.username) if parts.username else username
        password = urllib.parse.unquote(parts.password) if parts.password else password
    if password is not None and username is None:
        raise BadArgumentError("a password needs a user name (-u)")
    return Target(Address(host, port), username, password)


def new_client(
    target: Target, client_id: str | None, *, persistent: bool, reconnect: bool
) -> mqtt.Client:
    """Give an MQTT 3.1.1 client that is not connected yet and acknowledges only what it is told.

    Raises BadArgumentError for a persistent session without a client id.
    """
    if persistent and not client_id:
        raise BadArgumentError("a session that is kept (-c) needs a client id (-i)")
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id or "",
        clean_session=not persistent,
        reconnect_on_failure=reconnect,
        manual_ack=True,
    )
    if target.username is not None:
        client.username_pw_set(target.username, target.password)
    return client


def connect(client: mqtt.Client, target: Target) -> None:
    """Open the connection and send CONNECT; raises ClientError when nobody answers there."""
    try:
        client.connect(target.address.host, target.address.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClientError(f"cannot connect to {target.address}: {reason}") from None


def refusal(target: Target, code: ReasonCode) -> ClientError:
    """Give the error for a CONNACK that refuses; its exit code is the CONNACK return code."""
    return ClientError(
        f"{target.address} refused the connection: {str(code).lower()}",
        _RETURN_CODES.get(code.value, 1),
    )
