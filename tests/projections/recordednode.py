"""A random node that notes which messages take effect, when that is decided."""

from typing import NamedTuple

from randomnode import Node

from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished, Released
from eventstore.format.positions import from_runs


class Effect(NamedTuple):
    """One message that took effect."""

    at: int
    ref: int
    session: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    block: bytes
    will: bool


class Recorded(Node):
    """A node that notes what takes effect when it is decided."""

    def __init__(self, max_record: int) -> None:
        super().__init__(max_record)
        self.effects: list[Effect] = []
        self._unreleased: dict[int, Effect] = {}

    def emit(self, event: Event, payloads: tuple[bytes, ...] = ()) -> int:
        at = super().emit(event, payloads)
        if isinstance(event, MessagePublished):
            distinct = [b"", *payloads[: len(event.blocks)]]
            block_of = event.block_of or [len(event.blocks)] * event.count
            for number, payload in enumerate(payloads[len(event.blocks) :]):
                topic = event.topics[event.which[number] if event.which else 0]
                effect = Effect(
                    at + number, at + number, event.session, topic, payload,
                    event.qos, event.retain, distinct[block_of[number]], event.will,
                )  # fmt: skip
                if event.qos == 2 and not event.will:
                    self._unreleased[effect.at] = effect
                else:
                    self.effects.append(effect)
        elif isinstance(event, Released):
            for number, ref in enumerate(from_runs(event.refs)):
                self.effects.append(self._unreleased[ref]._replace(at=at + number))
        return at
