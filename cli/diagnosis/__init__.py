"""``foldmq status`` and ``foldmq doctor``: the health of a broker, and remedies for problems."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.diagnosis import doctor, status
    from cli.diagnosis.advice import Advice, advise, merge_advice
    from cli.diagnosis.broker_advice import advise_on_broker, advise_on_disk, lagging_replicas
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "advice": "Advice advise merge_advice",
            "broker_advice": "advise_on_broker advise_on_disk lagging_replicas",
            "doctor": "doctor",
            "status": "status",
        },
    )

__all__ = [
    "Advice",
    "advise",
    "advise_on_broker",
    "advise_on_disk",
    "doctor",
    "lagging_replicas",
    "merge_advice",
    "status",
]
