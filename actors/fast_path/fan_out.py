"""Deliveries that are too many for one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from actors.kernel.actor import LoopActor
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.connection.connection import Connection
    from actors.fast_path.fast_delivery import TurnDelivery
    from actors.session.node_context import NodeContext

_log = structlog.get_logger("foldmq")

_STEP = 64
"""Maximum deliveries in one step, after which the kernel may split the turn."""


class DeliveriesLeft:
    """Unfinished deliveries, and input that was read behind their messages."""

    __slots__ = ("deliveries", "input")

    def __init__(
        self, deliveries: list[TurnDelivery], behind: Mapping[Connection, Sequence[bytes]]
    ) -> None:
        self.deliveries = deliveries
        self.input = behind

    def __repr__(self) -> str:
        """Return the number of deliveries, by QoS."""
        return f"DeliveriesLeft({len(self.deliveries)})"


class FanOut(LoopActor):
    """Makes the deliveries that a pass leaves, in the same turn; it may be split between steps."""

    __slots__ = ("_node", "step")

    def __init__(self, node: NodeContext) -> None:
        super().__init__()
        self._node = node
        self.step = _STEP
        """Maximum deliveries in one step."""

    def on_receive(self, message: DeliveriesLeft) -> None:
        """Make some deliveries; hand the input over after the last ones."""
        try:
            message.deliveries = do_deliveries(message.deliveries, self.step)
        except Exception as error:  # noqa: BLE001 - a half-done turn must not continue
            fail_turn(self._node, error)
            return
        if message.deliveries:
            self.kernel.tell(self, message)
        else:
            for connection in message.input:
                connection.on_read_resumed()
            self.hand_over(message.input)

    def hand_over(self, reads: Mapping[Connection, Sequence[bytes]]) -> None:
        """Pass input to the actors of connections, before what waits for them."""
        for connection, rest in reads.items():
            if not connection.stopped:
                self.kernel.tell_first(connection, b"".join(rest))


def do_deliveries(deliveries: list[TurnDelivery], most: int) -> list[TurnDelivery]:
    """Make up to ``most`` deliveries of each of these; return those that are not finished."""
    done = 0
    for delivery in deliveries:
        if not delivery.run(most):
            break
        done += 1
    return deliveries[done:]


def fail_turn(node: NodeContext, error: Exception) -> None:
    """End the broker because a turn failed after some of it was recorded."""
    _log.error("turn failed", exc_info=error)
    node.fail(FoldmqError(f"a turn failed: {error!r}; this is a bug, please report it"))
