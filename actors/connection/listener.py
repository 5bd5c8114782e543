"""Listeners: endpoint, options of accepted connections, and decoder of their packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from actors.configuration import NO_QUOTA, Quota
from actors.connection.connection import Connection
from actors.transports import StackOptions, build_stack
from protocol.mqtt5 import PacketDecoderV5

if TYPE_CHECKING:
    import asyncio

    from actors.connection.admission import Admission
    from actors.session import NodeContext
    from actors.transports import IdentityKind


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """What holds for the connections that a listener accepts."""

    name: str
    """Its endpoint, as in the settings."""
    max_packet_size: int
    """Bytes."""
    connect_timeout: float
    """Seconds until the CONNECT must be there, whatever has to come before it; what that waits for
    our threads does not count, up to as long again."""
    allow_anonymous: bool = True
    identity: IdentityKind | None = None
    """What of a client's certificate is its user; None: nothing."""
    quota: Quota = NO_QUOTA
    """For all of its connections together."""
    stack: StackOptions = field(default_factory=StackOptions)
    """What stands between its sockets and its connections."""


class Listener:
    """One listener of a broker."""

    __slots__ = ("_node", "admission", "options", "v5")

    def __init__(self, node: NodeContext, admission: Admission, options: ListenerOptions) -> None:
        self._node = node
        self.admission = admission
        """Decides which connections come in."""
        self.options = options
        """May be replaced: what comes from then on has the new ones."""
        self.v5: Final = partial(PacketDecoderV5, node.options.max_topic_aliases)
        """Makes what reads the packets of an MQTT 5 client."""

    def admits(self, host: str) -> bool:
        """Say whether a socket from this host may become a connection; no host: not known yet."""
        name, proxied = self.options.name, self.options.stack.proxy is not None
        return not self.admission.refuses(name, "" if proxied else host)

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new socket."""
        connection = Connection(self._node, self)
        self._node.kernel.spawn(connection, self._node.root)
        return build_stack(connection, self.options.stack)
