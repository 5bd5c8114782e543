"""CONNECT and CONNACK of a connection to another broker, without I/O."""

from __future__ import annotations

from typing import Final, cast

from outbox.mqtt.options import ConnectionOptions
from outbox.mqtt.outbound import MAX_WINDOW, PeerLimits
from protocol.errors import FoldmqError
from protocol.mqtt import property_table as table
from protocol.mqtt.client_packet_encoder import encode_connect, encode_publish, encode_subscribe
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.origin_properties import LogRun, log_of, log_property
from protocol.mqtt.packets import Connect, ConnectCode, ConnectProperties, Subscribe, Will
from protocol.mqtt.reason_codes import FOR_CONNECT_CODES, ReasonCode
from protocol.mqtt.server_packet_decoder import Answer
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED

CONNECTED: Final = b"1"
DISCONNECTED: Final = b"0"
"""Payloads of the notifications."""

_WINDOW: Final = 20
"""Unacknowledged messages before MQTT 5, which has no Receive Maximum.

It is the limit of Mosquitto 2.0, which acknowledges more messages without storing them.
"""
_ANY: Final = 65_535
_LOCAL_KEEP_ALIVE: Final = 60
_NEVER: Final = 0xFFFFFFFF
_ONLY_NEW: Final = 0x10
"""Retain Handling: retained messages are sent for a new subscription only."""
_PASSING: Final = frozenset(
    {
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
    }
)
"""Reasons of a refused CONNECT that may pass; all others are errors in the settings."""


class PeerRefusedError(FoldmqError):
    """The peer refused the CONNECT."""

    def __init__(self, code: ReasonCode, reason_string: str | None) -> None:
        text = f"the other broker refuses the connection: {code_text(code)}"
        super().__init__(f"{text} ({reason_string})" if reason_string else text)
        self.code = code
        self.misconfigured = code not in _PASSING


def code_text(code: int) -> str:
    """Return a reason code for display: its name and number."""
    try:
        name = ReasonCode(code).name.replace("_", " ").lower()
    except ValueError:
        return f"0x{code:02x}"
    return f"{name} (0x{code:02x})"


def connect_packet(
    options: ConnectionOptions, bridged: LogRun, password: str | None, *, clean: bool, private: bool
) -> bytes:
    """Return the CONNECT of a log; ``private``: as a bridge (before MQTT 5).

    ``clean`` asks for a new session, which before MQTT 5 ends with the connection.
    """
    will, (log, _) = None, bridged
    if options.notifications:
        will = Will(options.state_topic(log), DISCONNECTED, 1, retain=True)
    connect = Connect(
        options.version,
        options.peer_client_id(log),
        clean or options.clean_session,
        options.keep_alive,
        will,
        options.username,
        password.encode() if password is not None else None,
        bridge=private,
    )
    if options.version == MQTT_5:
        connect.properties = ConnectProperties(
            session_expiry=0 if options.clean_session else options.session_expiry,
            receive_maximum=options.receive_maximum,
            maximum_packet_size=options.max_packet,
            user=(log_property(*bridged),),
        )
    return encode_connect(connect)


def local_connect_packet(options: ConnectionOptions, *, clean: bool) -> bytes:
    """Return the CONNECT to this broker, for messages in."""
    connect = Connect(
        MQTT_5,
        options.local_client_id,
        clean,
        _LOCAL_KEEP_ALIVE,
        None,
        options.local_username,
        options.local_password.encode() if options.local_password is not None else None,
        ConnectProperties(session_expiry=_NEVER),
    )
    return encode_connect(connect)


def local_limit(connack: Answer) -> int:
    """Return the largest packet that this broker takes, in bytes; 0: no limit."""
    return cast("int", connack.properties.get(table.MAXIMUM_PACKET_SIZE, 0))


def subscribe_packet(filters: list[tuple[str, int]], packet_id: int, version: int) -> bytes:
    """Return the SUBSCRIBE for messages in.

    A broker that knows no bridges sends retained messages at each SUBSCRIBE before MQTT 5.
    """
    if version != MQTT_5:
        return encode_subscribe(Subscribe(packet_id, filters))
    options = [NO_LOCAL | RETAIN_AS_PUBLISHED | _ONLY_NEW] * len(filters)
    return encode_subscribe(Subscribe(packet_id, filters, options), v5=True)


def state_packet(options: ConnectionOptions, log: str, payload: bytes) -> bytes:
    """Return the PUBLISH that tells the other broker whether the connection is open."""
    topic = options.state_topic(log).encode()
    block = b"" if options.version == MQTT_5 else None
    return encode_publish(topic, payload, retain=True, block=block)


def check_connack(connack: Answer, version: int) -> None:
    """Raise PeerRefusedError if a CONNACK refuses."""
    if not connack.reason:
        return
    if version == MQTT_5:
        code = ReasonCode(connack.reason)
    else:
        code = FOR_CONNECT_CODES[ConnectCode(connack.reason)]
    text = connack.properties.get(table.REASON_STRING)
    raise PeerRefusedError(code, str(text) if text is not None else None)


def limits_of(connack: Answer, options: ConnectionOptions) -> PeerLimits:
    """Return what a peer accepts, within the settings."""
    version, most = options.version, options.max_inflight
    if version != MQTT_5:
        return PeerLimits(version, most or _WINDOW)
    values = cast("dict[int, int]", connack.properties)
    return PeerLimits(
        version,
        min(values.get(table.RECEIVE_MAXIMUM, _ANY), most or MAX_WINDOW),
        values.get(table.MAXIMUM_QOS, 2),
        bool(values.get(table.RETAIN_AVAILABLE, 1)),
        values.get(table.MAXIMUM_PACKET_SIZE, 0),
        takes_origins=log_of(connack.user) is not None,
    )


def keep_alive_of(connack: Answer, asked: int) -> int:
    """Return the seconds after which a packet must be sent; 0: never."""
    return cast("int", connack.properties.get(table.SERVER_KEEP_ALIVE, asked))
