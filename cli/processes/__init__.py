"""Several broker processes behind the same listeners: ``--processes N`` and ``--partitions P``.

The main process accepts connections, reads the client identifier of each CONNECT, and passes the
socket or the bytes to the process that has the client's session. It starts the processes, and
restarts those that end. In a cluster with several logs, that process may be one of another node.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.processes.broker_process import ProcessMember, member_settings
    from cli.processes.partitioned_node import PartitionedNode
    from cli.processes.supervisor import Supervisor, check_process_count
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_process": "ProcessMember member_settings",
            "partitioned_node": "PartitionedNode",
            "supervisor": "Supervisor check_process_count",
        },
    )

__all__ = [
    "PartitionedNode",
    "ProcessMember",
    "Supervisor",
    "check_process_count",
    "member_settings",
]
