"""Several broker processes on one machine, behind the same listeners: ``--processes N``.

The main process accepts connections, reads the client identifier of each CONNECT without consuming
it, and passes the socket to the process that has the client's session. It starts the processes, and
restarts those that end.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.processes.member import ProcessMember, member_settings
    from cli.processes.supervisor import Supervisor, check_process_count
else:
    __getattr__ = lazy_exports(
        __name__,
        {"member": "ProcessMember member_settings", "supervisor": "Supervisor check_process_count"},
    )

__all__ = ["ProcessMember", "Supervisor", "check_process_count", "member_settings"]
