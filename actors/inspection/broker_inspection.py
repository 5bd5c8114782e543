"""The inspection of a running broker: the inspector, and the handlers of its endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.connection.admission import Admission
from actors.inspection.broker_status import own_bytes, status
from actors.inspection.destination_desk import DestinationDesk
from actors.inspection.erasure import Erasure
from actors.inspection.inspector import Handler, Inspector
from actors.inspection.operations import Operations
from actors.inspection.queries import BusiestTopics, Queries
from actors.inspection.status_sources import LogStorage, StatusSources
from actors.maintenance.projector import Projector
from actors.session.node_context import NodeContext

if TYPE_CHECKING:
    from actors.bridge.bridge_supervisor import BridgeSupervisor


class BrokerInspection:
    """The inspection of one broker; :meth:`start` begins it."""

    def __init__(
        self,
        node: NodeContext,
        admission: Admission,
        projector: Projector,
        bridge: BridgeSupervisor | None,
    ) -> None:
        self.node = node
        self.admission = admission
        self.storage = LogStorage(node)
        self.destinations = DestinationDesk(node)
        self._sources = StatusSources(
            *(node, admission, projector, self.storage, bridge, own_bytes()),
            self.destinations.rows,
        )
        self.erasure = Erasure(node)
        more = {**self.destinations.actions, "erase": self.erasure.change}
        self.operations = Operations(node, more)
        self.handlers: dict[str, Handler] = {
            **Queries(self._sources, BusiestTopics(node)).handlers(),
            "change": self.operations.change,
            "destinations": self.destinations.destinations,
            "erasures": self.erasure.answer,
            "erasures.name": self.erasure.name,
            "erasures.receivers": self.erasure.receivers,
            "erasures.progress": self.erasure.progress,
        }
        """The handlers of the inspector, by endpoint."""
        self.inspector: Inspector

    def start(self) -> None:
        """Start an inspector, or replace a failed one."""
        self.inspector = Inspector(self.node, self.handlers)
        self.node.kernel.spawn(self.inspector, self.node.root)

    def status(self) -> dict[str, Any]:
        """Return counters and gauges at once, without the inspector."""
        return status(self._sources)
