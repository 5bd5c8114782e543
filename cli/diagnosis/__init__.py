"""``foldmq status`` and ``foldmq doctor``: the health of a broker, and remedies for problems."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.diagnosis import doctor, status
    from cli.diagnosis.advice import Advice, advise, merge_advice
    from cli.diagnosis.broker_advice import advise_on_broker, advise_on_disk, lagging_replicas
    from cli.diagnosis.certificate_advice import advise_on_certificates, certificate_line
    from cli.diagnosis.doctor import find_problems, pids_of
    from cli.diagnosis.next_commands import NextCommands
    from cli.diagnosis.refusal_advice import advise_on_refusals
    from cli.diagnosis.status import ask_statuses
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "advice": "Advice advise merge_advice",
            "broker_advice": "advise_on_broker advise_on_disk lagging_replicas",
            "certificate_advice": "advise_on_certificates certificate_line",
            "doctor": "doctor find_problems pids_of",
            "next_commands": "NextCommands",
            "refusal_advice": "advise_on_refusals",
            "status": "ask_statuses status",
        },
    )

__all__ = [
    "Advice",
    "NextCommands",
    "advise",
    "advise_on_broker",
    "advise_on_certificates",
    "advise_on_disk",
    "advise_on_refusals",
    "ask_statuses",
    "certificate_line",
    "doctor",
    "find_problems",
    "lagging_replicas",
    "merge_advice",
    "pids_of",
    "status",
]
