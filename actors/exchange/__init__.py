"""LogExchange of messages between the logs of one node, each led by a broker of its own.

A session belongs to one log. Each broker follows the logs of the others. What takes effect there
and concerns its own sessions it appends to its own log, with the deliveries and with the position
that it has reached, in one turn: a crash leaves all of that or nothing, so that every message
arrives exactly once. Messages of QoS 0 are in no log; they pass from broker to broker in batches.
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
