"""CONNACK for MQTT 5 clients that are accepted."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.server_packet_encoder_v5 import ConnackProperties, encode_connack_v5

if TYPE_CHECKING:
    from actors.limits.broker_options import BrokerOptions
    from protocol.mqtt.packets import ConnectProperties

_LONGEST_STRING: Final = 65_535
"""Maximum bytes of a string in a packet."""
_NO_LEVEL: Final = frozenset("/+#")
"""Characters that no topic level may contain."""


def accepting_connack(
    asked: ConnectProperties,
    options: BrokerOptions,
    *,
    resumed: bool,
    session_expiry: int | None,
    server_keep_alive: int | None,
    max_packet: int,
    client_id: str,
    is_assigned: bool,
    authentication_data: bytes | None,
) -> bytes:
    """Return the CONNACK that accepts a client; empty if it exceeds the client's packet limit.

    ``session_expiry`` and ``server_keep_alive`` are in seconds; None: as the client requested.
    ``max_packet`` is the maximum size in bytes of packets from the client, ``client_id`` its
    identifier as the client knows it.
    """
    usual = (
        resumed,
        session_expiry,
        server_keep_alive,
        options.receive_maximum,
        1 if options.reject_qos2_publish else 2,
        max_packet,
        options.max_topic_aliases,
        asked.maximum_packet_size,
    )
    assigned = client_id if is_assigned else None
    prefix = None
    if asked.request_response_information:
        prefix = _response_information(options.response_information, client_id)
    plain = assigned is None and prefix is None and asked.authentication_method is None
    if plain:
        return _usual_connack(*usual)
    return _encode_connack(
        *usual,
        ConnackProperties(
            assigned_client_identifier=assigned,
            response_information=prefix,
            authentication_method=asked.authentication_method,
            authentication_data=authentication_data,
        ),
    )


def _response_information(prefix: str, client_id: str) -> str | None:
    """Return the prefix of a client's response topics; None: it has none.

    There is none for a client identifier that would span several topic levels, or that makes the
    prefix longer than an MQTT string.
    """
    if not prefix:
        return None
    if "%c" in prefix and _NO_LEVEL.intersection(client_id):
        return None
    found = prefix.replace("%c", client_id)
    return found if len(found.encode()) <= _LONGEST_STRING else None


def _encode_connack(
    resumed: bool,
    session_expiry: int | None,
    server_keep_alive: int | None,
    receive_maximum: int,
    maximum_qos: int,
    maximum_packet_size: int,
    topic_alias_maximum: int,
    limit: int,
    properties: ConnackProperties | None = None,
) -> bytes:
    """Encode the CONNACK of MQTT 5 that accepts a client, with more ``properties``.

    Empty if it is larger than ``limit``, the client's maximum packet size; 0: there is none.
    """
    properties = properties or ConnackProperties()
    properties.session_expiry = session_expiry
    properties.server_keep_alive = server_keep_alive
    properties.receive_maximum = receive_maximum
    properties.maximum_qos = maximum_qos
    properties.maximum_packet_size = maximum_packet_size
    properties.topic_alias_maximum = topic_alias_maximum
    return encode_connack_v5(
        ReasonCode.SUCCESS, session_present=resumed, properties=properties, limit=limit
    )


_usual_connack = lru_cache(64)(_encode_connack)
