"""Listeners: endpoint, options of accepted connections, and decoder of their packets."""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from actors.limits.limit_options import NO_QUOTA, Quota
from actors.transports.peer import IdentityKind
from actors.transports.stack import StackOptions
from protocol.mqtt.decoder_v5 import PacketDecoderV5


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Options of the connections that a listener accepts."""

    name: str
    """Its endpoint, as in the settings."""
    max_packet_size: int
    """Bytes."""
    connect_timeout: float
    """Seconds until the CONNECT must have arrived, including all handshakes before it; time spent
    waiting for the broker's threads does not count, up to the same number of seconds."""
    allow_anonymous: bool = True
    identity: IdentityKind | None = None
    """The field of a client's certificate that contains the user; None: users are not taken from
    certificates."""
    quota: Quota = NO_QUOTA
    """Limits on all connections of the listener together."""
    stack: StackOptions = field(default_factory=StackOptions)
    """The stages between its sockets and its connections."""


class Listener:
    """What the connections of a listener share."""

    __slots__ = ("options", "v5")

    def __init__(self, options: ListenerOptions, max_topic_aliases: int) -> None:
        self.options = options
        """The current options; they may be replaced, and apply to later connections."""
        self.v5: Final = partial(PacketDecoderV5, max_topic_aliases)
        """Creates the decoder for packets of an MQTT 5 client."""
