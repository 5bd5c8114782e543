"""Clients of a running broker over NATS: its inspector and its live traces."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.live.broker_client import (
        SERVICE,
        SUBJECTS,
        LiveBroker,
        NoAnswer,
        NoLiveBroker,
        Refused,
        TooLarge,
        open_broker,
    )
    from cli.live.broker_link import BrokerLink, NotUnderstood, OpenBroker, understood
    from cli.live.state_client import NoBroker, StateClient
    from cli.live.trace_client import LiveTrace, Portion, open_trace
    from cli.live.trace_text import TraceWords
else:
    __getattr__ = front_door(
        __name__,
        {
            "broker_client": (
                "LiveBroker NoAnswer NoLiveBroker Refused SERVICE SUBJECTS TooLarge open_broker"
            ),
            "broker_link": "BrokerLink NotUnderstood OpenBroker understood",
            "state_client": "NoBroker StateClient",
            "trace_client": "LiveTrace Portion open_trace",
            "trace_text": "TraceWords",
        },
    )

__all__ = [
    "SERVICE",
    "SUBJECTS",
    "BrokerLink",
    "LiveBroker",
    "LiveTrace",
    "NoAnswer",
    "NoBroker",
    "NoLiveBroker",
    "NotUnderstood",
    "OpenBroker",
    "Portion",
    "Refused",
    "StateClient",
    "TooLarge",
    "TraceWords",
    "open_broker",
    "open_trace",
    "understood",
]
