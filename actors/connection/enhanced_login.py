"""The AUTH packets of one authentication (MQTT 5, section 4.12), at CONNECT or later.

The steps are decided beside the event loop, as passwords are; their number, their bytes and the
time for them are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from actors.authn import Challenge
from protocol.mqtt import ReasonCode
from protocol.mqtt5 import Explanation, encode_server_auth

if TYPE_CHECKING:
    import asyncio

    from actors.authn import Exchange, Outcome, Step
    from actors.connection.connection import Connection
    from actors.session import AuthenticationStep, NodeContext

_LONGEST = 65_535
"""Bytes of a binary property."""


class LoginOwner(Protocol):
    """What started an enhanced login: a CONNECT or a re-authentication."""

    def challenged(self) -> None:
        """Accept the next AUTH of the client: it was sent a challenge."""

    def concluded(self, outcome: Outcome) -> None:
        """Accept or refuse the client."""

    def exceeded(self, limit: str) -> None:
        """Refuse the client: it reached a limit, or the broker did."""


class EnhancedLogin:
    """One exchange of a client with the method that it named."""

    __slots__ = ("_bytes", "_connection", "_exchange", "_node", "_owner", "_steps", "_task", "open")

    def __init__(
        self, node: NodeContext, connection: Connection, owner: LoginOwner, exchange: Exchange
    ) -> None:
        self._node = node
        self._connection = connection
        self._owner = owner
        self._exchange = exchange
        self._steps = 0
        self._bytes = 0
        """Authentication Data of the client."""
        self._task: asyncio.Task[None] | None = None
        self.open = False
        """True while a challenge waits for the client's AUTH."""

    @property
    def user(self) -> str | None:
        """The user name that the client gave; None: not known yet."""
        return self._exchange.user

    def take(self, data: bytes | None) -> None:
        """Process one AUTH of the client; the answer goes to :meth:`decided`."""
        bounds = self._node.options.bounds
        self.open = False
        self._steps += 1
        self._bytes += len(data or b"")
        if bounds.max_auth_steps and self._steps > bounds.max_auth_steps:
            self._owner.exceeded("auth_steps")
        elif bounds.max_auth_bytes and self._bytes > bounds.max_auth_bytes:
            self._owner.exceeded("auth_bytes")
        else:
            connection = self._connection
            admission = connection.listener.admission
            self._task = admission.take_step(connection, self, self._exchange, data)
            if self._task is None:
                self._owner.exceeded("too_many_logins")

    def decided(self, message: AuthenticationStep) -> None:
        """Go on with what the method answers."""
        step: Step = message.step
        self._task = None
        if self._connection.ended:
            return
        if not isinstance(step, Challenge):
            self._owner.concluded(step)
        elif self.send(ReasonCode.CONTINUE_AUTHENTICATION, step.data, step.reason):
            self.open = True
            self._owner.challenged()

    def send(self, code: ReasonCode, data: bytes | None, reason: str | None = None) -> bool:
        """Send an AUTH; return whether the client accepts one of its size."""
        connection = self._connection
        properties = connection.properties
        if properties is None:
            return False
        if data is not None and len(data) > _LONGEST:
            self._owner.exceeded("packet_too_large")
            return False
        packet = encode_server_auth(
            code,
            self._exchange.method,
            data,
            Explanation(reason),
            limit=properties.maximum_packet_size,
            explain=properties.request_problem_information,
        )
        if not packet:
            self._owner.exceeded("packet_too_large")
            return False
        self._node.journal.send_unlogged(connection, packet)
        self._node.counters.packets_out += 1
        return True

    def give_up(self) -> None:
        """Cancel the exchange."""
        self.open = False
        if self._task is not None:
            self._task.cancel()
            self._task = None
