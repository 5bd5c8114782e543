"""The observer of a traced actor: reports the actor's actions to its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.inspection.recorder import TraceRecorder
    from actors.inspection.trace import Trace
    from actors.kernel.actor import LoopActor


class TracingObserver:
    """Reports the actions of one actor to the traces that cover it."""

    __slots__ = ("_recorder", "traces")

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self.traces: list[Trace] = []

    def begin(self, actor: LoopActor) -> None:
        """Begin to observe the messages that the actor sends."""
        self._recorder.begin(actor, self)

    def end(self, _actor: LoopActor) -> None:
        """Stop observing sent messages."""
        self._recorder.end()

    def gets(self, actor: LoopActor, message: Any) -> None:
        """Show a message that the actor is about to handle."""
        self._recorder.run_safely(self._recorder.on_gets, actor, self.traces, message)

    def sends(self, target: LoopActor, message: Any) -> None:
        """Show a message that the actor sends to another one."""
        self._recorder.run_safely(self._recorder.on_sends, target, message)

    def ended(self, actor: LoopActor, error: Exception | None) -> None:
        """Show that the actor stopped or failed."""
        self._recorder.run_safely(self._recorder.on_ended, actor, self.traces, error)

    def took(self, actor: LoopActor, packets: Sequence[Any], error: Exception | None) -> None:
        """Show the packets that a client sent."""
        self._recorder.run_safely(self._recorder.on_took, actor, self.traces, packets, error)

    def wrote(self, actor: LoopActor, data: bytes) -> None:
        """Show the packets sent to the client."""
        self._recorder.run_safely(self._recorder.on_wrote, actor, self.traces, data)

    def closes(self, actor: LoopActor, reason: str) -> None:
        """Show that a connection ends."""
        self._recorder.run_safely(self._recorder.on_closes, actor, self.traces, reason)
