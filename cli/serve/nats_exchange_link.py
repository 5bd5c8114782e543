"""Messages between broker processes on core NATS.

They are the ends of logs, members of shared subscriptions, messages of QoS 0, and the topic filters
that the bridges to NATS subscribe to for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.exchange.exchange import LogExchange
    from eventstore.nats.direct_client import DirectClient

_STORED, _PASSED_ON = "foldmq.exchange.{}.stored", "foldmq.exchange.{}.messages"
_MEMBERS, _FILTERS = "foldmq.exchange.{}.members", "foldmq.exchange.{}.filters"
_PROTOCOL_ROOM = 1024


class NatsExchangeLink:
    """The link of one process; ``name`` is that of its log."""

    def __init__(self, client: DirectClient, name: str) -> None:
        self._client = client
        self.name = name
        self._stored, self._passed_on = _STORED.format(name), _PASSED_ON.format(name)
        self._members, self._filters = _MEMBERS.format(name), _FILTERS.format(name)
        self.largest = client.max_payload - _PROTOCOL_ROOM

    async def listen(self, exchange: LogExchange, others: Sequence[str]) -> None:
        """Pass the messages of other processes to the exchange."""
        for other in others:
            await self._client.listen(
                _STORED.format(other),
                lambda _, data, other=other: exchange.heard(other, int(data)),  # type: ignore[misc]
            )
            await self._client.listen(
                _PASSED_ON.format(other),
                lambda _, data, other=other: exchange.arrived(other, data),  # type: ignore[misc]
            )
            await self._client.listen(
                _MEMBERS.format(other),
                lambda _, data, other=other: exchange.reported(other, data),  # type: ignore[misc]
            )
            await self._client.listen(
                _FILTERS.format(other),
                lambda _, data, other=other: exchange.reported_filters(other, data),  # type: ignore[misc]
            )

    def announce(self, log: str, sequence: int) -> None:
        """Tell the other processes that this process's log is stored up to a record."""
        del log  # it is that of this process
        self._client.publish_now(self._stored, b"%d" % sequence)

    def pass_on(self, batch: bytes) -> bool:
        """Send a batch of QoS 0 messages to the other processes."""
        return self._client.publish_now(self._passed_on, batch)

    def report(self, members: bytes) -> bool:
        """Tell the other processes about the members of shared subscriptions."""
        return self._client.publish_now(self._members, members)

    def report_filters(self, filters: bytes) -> bool:
        """Tell the bridges of the other processes about the topic filters of clients."""
        return self._client.publish_now(self._filters, filters)
