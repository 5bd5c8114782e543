"""Listeners: endpoint, options of accepted connections, and decoder of their packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from actors.connection.connection import Connection
from actors.limits.limit_options import NO_QUOTA, Quota
from actors.transports.stack import StackOptions, build_stack
from protocol.mqtt.decoder_v5 import PacketDecoderV5

if TYPE_CHECKING:
    import asyncio

    from actors.connection.admission import Admission
    from actors.session.node_context import NodeContext
    from actors.transports.peer import IdentityKind


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
    """One listener of a broker."""

    __slots__ = ("_node", "admission", "options", "v5")

    def __init__(self, node: NodeContext, admission: Admission, options: ListenerOptions) -> None:
        self._node = node
        self.admission = admission
        """Decides which connections are admitted."""
        self.options = options
        """The current options; they may be replaced, and apply to later connections."""
        self.v5: Final = partial(PacketDecoderV5, node.options.max_topic_aliases)
        """Creates the decoder for packets of an MQTT 5 client."""

    def admits(self, host: str) -> bool:
        """Return whether a socket from this host may become a connection; empty: not known yet."""
        name, proxied = self.options.name, self.options.stack.hides_clients(host)
        return not self.admission.refuses(name, "" if proxied else host)

    def accept(self, waited: float = 0.0) -> asyncio.Protocol:
        """Return the protocol of a new socket.

        ``waited`` are the seconds of ``connect_timeout`` that its client used before.
        """
        connection = Connection(self._node, self)
        connection.waited_before = waited
        self._node.kernel.spawn(connection, self._node.root)
        return build_stack(cast("asyncio.Protocol", connection), self.options.stack)
