"""The inspector: queries about a running broker, operators' changes, and ``$SYS`` topics.

``status`` contains the gauges of the status; counters are declared where they are counted,
most of them in ``actors.node.counters``.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.inspection.broker_inspection import BrokerInspection
    from actors.inspection.inspector import Handler, Inspector
    from actors.inspection.requests import (
        NotReady,
        Refused,
        TooLarge,
        number,
        optional,
        shown,
        text,
    )
    from actors.inspection.retained_clearing import clear_denied
    from actors.inspection.status import METRICS
    from actors.inspection.sys_topics import SysTopicTree
    from actors.inspection.views import client_of
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_inspection": "BrokerInspection",
            "inspector": "Handler Inspector",
            "requests": "NotReady Refused TooLarge number optional shown text",
            "retained_clearing": "clear_denied",
            "status": "METRICS",
            "sys_topics": "SysTopicTree",
            "views": "client_of",
        },
    )

__all__ = [
    "METRICS",
    "BrokerInspection",
    "Handler",
    "Inspector",
    "NotReady",
    "Refused",
    "SysTopicTree",
    "TooLarge",
    "clear_denied",
    "client_of",
    "number",
    "optional",
    "shown",
    "text",
]
