"""Exchange of messages between the logs of one node, each of which has a broker.

A session belongs to one log. Each broker follows the logs of the others. It appends the messages
that take effect there and concern its own sessions to its log, with the deliveries and with the
position that it has reached, in one turn: after a crash all of these are in the log or none, so
that every message arrives exactly once. Messages of QoS 0 are in no log; the brokers send them to
each other in batches.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.exchange.exchange import ExchangeLink, LogExchange, OtherLog
else:
    __getattr__ = lazy_exports(
        __name__,
        {"exchange": "LogExchange ExchangeLink OtherLog"},
    )

__all__ = ["ExchangeLink", "LogExchange", "OtherLog"]
