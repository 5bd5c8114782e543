"""Clients of a running broker over NATS: its inspector and its live traces."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.live.broker_client import (
        SERVICE,
        SUBJECTS,
        LiveBroker,
        NoAnswer,
        NoLiveBroker,
        Refused,
        TooLarge,
    )
    from cli.live.broker_search import open_broker, open_brokers
    from cli.live.log_brokers import LogBrokers
    from cli.live.log_traces import LogTraces, open_traces
    from cli.live.reconnecting_client import (
        NotUnderstood,
        OpenBrokers,
        ReconnectingClient,
        understood,
    )
    from cli.live.state_client import NoBroker, StateClient
    from cli.live.trace_client import LiveTrace, Portion, open_trace
    from cli.live.trace_text import TraceWords
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_client": "LiveBroker NoAnswer NoLiveBroker Refused SERVICE SUBJECTS TooLarge",
            "broker_search": "open_broker open_brokers",
            "log_brokers": "LogBrokers",
            "log_traces": "LogTraces open_traces",
            "reconnecting_client": "ReconnectingClient NotUnderstood OpenBrokers understood",
            "state_client": "NoBroker StateClient",
            "trace_client": "LiveTrace Portion open_trace",
            "trace_text": "TraceWords",
        },
    )

__all__ = [
    "SERVICE",
    "SUBJECTS",
    "LiveBroker",
    "LiveTrace",
    "LogBrokers",
    "LogTraces",
    "NoAnswer",
    "NoBroker",
    "NoLiveBroker",
    "NotUnderstood",
    "OpenBrokers",
    "Portion",
    "ReconnectingClient",
    "Refused",
    "StateClient",
    "TooLarge",
    "TraceWords",
    "open_broker",
    "open_brokers",
    "open_trace",
    "open_traces",
    "understood",
]
