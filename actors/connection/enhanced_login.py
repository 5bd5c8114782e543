"""The AUTH packets of one authentication (MQTT 5, section 4.12), at CONNECT or later.

The steps are decided outside the event loop, as password checks are; their number, size and
duration are limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from actors.access.enhanced import Challenge, Exchange, Outcome, Step
from actors.session.node_context import NodeContext
from actors.session.session_messages import AuthenticationStep
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.server_packet_encoder_v5 import Explanation, encode_server_auth

if TYPE_CHECKING:
    import asyncio

    from actors.connection.admission import Admission
    from actors.connection.core import ConnectionCore

_LONGEST = 65_535
"""Maximum bytes of a binary property."""


class LoginOwner(Protocol):
    """The initiator of an enhanced login: a CONNECT or a re-authentication."""

    def challenged(self) -> None:
        """Accept the next AUTH of the client, to which a challenge was sent."""

    def concluded(self, outcome: Outcome) -> None:
        """Accept or refuse the client."""

    def exceeded(self, limit: str) -> None:
        """Refuse the client because it, or the broker, exceeded a limit."""


class EnhancedLogin:
    """One exchange of a client by its chosen method."""

    __slots__ = (
        "_admission",
        "_bytes",
        "_connection",
        "_exchange",
        "_node",
        "_owner",
        "_steps",
        "_task",
        "open",
    )

    def __init__(
        self,
        node: NodeContext,
        connection: ConnectionCore,
        admission: Admission,
        owner: LoginOwner,
        exchange: Exchange,
    ) -> None:
        self._node = node
        self._admission = admission
        self._connection = connection
        self._owner = owner
        self._exchange = exchange
        self._steps = 0
        self._bytes = 0
        """Bytes of the client's Authentication Data so far."""
        self._task: asyncio.Task[None] | None = None
        self.open = False
        """True while a challenge waits for the client's AUTH."""

    @property
    def user(self) -> str | None:
        """The user name given by the client; None: not known yet."""
        return self._exchange.user

    def advance(self, data: bytes | None) -> None:
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
            self._task = self._admission.begin_step(self._connection, self, self._exchange, data)
            if self._task is None:
                self._owner.exceeded("too_many_logins")

    def decided(self, message: AuthenticationStep) -> None:
        """Continue with the answer of the method."""
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
        """Send an AUTH; return whether the client accepts its size."""
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
