"""A kernel whose turns a test runs, and an actor that keeps what it gets."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from actors.kernel.actor import LoopActor
from actors.kernel.kernel import Kernel


class Recorder(LoopActor):
    """Keeps its messages; a callable is called with the actor."""

    def __init__(self, journal: list[Any] | None = None, name: str = "") -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.undelivered: list[Any] = []
        self.life: list[str] = []
        self.journal = journal
        self.name = name

    def on_start(self) -> None:
        self.life.append("start")

    def on_stop(self) -> None:
        self.life.append("stop")

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.life.append(f"failure {exception_value}")

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message(self)
        self.seen.append(message)
        if self.journal is not None:
            self.journal.append((self.name, message))
        return f"got {message}"

    def on_dead_letters(self, messages: list[Any]) -> None:
        self.undelivered += messages


Kind = TypeVar("Kind", bound=LoopActor)


class Loop:
    """What the kernel asks for a turn."""

    def __init__(self, **clocks: Any) -> None:
        self.asked: list[Callable[[], None]] = []
        self.kernel = Kernel(self.asked.append, **clocks)

    def spawn(self, actor: Kind) -> Kind:
        self.kernel.spawn(actor)
        return actor

    def family(self, *children: Recorder) -> list[Any]:
        """Return a parent, and its children."""
        parent = self.spawn(Recorder())
        for child in children:
            self.kernel.spawn(child, parent)
        return [parent, *children]

    def run(self) -> int:
        """Run the requested turns until there are none; return their number."""
        turns = 0
        while self.asked:
            self.asked.pop(0)()
            turns += 1
        return turns


class Slices(Loop):
    """A kernel whose clock each message moves on by a millisecond, and the breaks it takes."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.now = 100.0
        self.breaks: list[tuple[float, Callable[[], None]]] = []
        self.handled: list[Any] = []
        super().__init__(
            clock=lambda: self.now, delay=lambda delay, go: self.breaks.append((delay, go))
        )
        slices = self

        class Costly(LoopActor):
            def on_receive(self, message: Any) -> None:
                slices.now += seconds
                slices.handled.append(message)

        self.actors: list[LoopActor] = [self.spawn(Costly()) for _ in range(10)]

    def turn(self) -> None:
        asked, self.asked[:] = list(self.asked), []
        for one in asked:
            one()


class Cut(Slices):
    """Each message takes a millisecond, and a turn is cut after two of them."""

    def __init__(self) -> None:
        super().__init__(0.001)
        self.kernel.turn_slice = 0.002
        self.ended: list[int] = []
        self.cuts = 0
        self.kernel.turn_ended = lambda: self.ended.append(len(self.handled))
        self.kernel.turn_split = self._cut

    def _cut(self) -> None:
        self.cuts += 1
