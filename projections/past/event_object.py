"""Events of the log as JSON objects."""

from collections.abc import Sequence

from eventstore import display
from eventstore.format.event_json import field_values
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    ReplayOpened,
    ReplayReached,
    RetainedExpired,
    WillArmed,
)
from eventstore.format.node_events import (
    CheckpointCompleted,
    LogCut,
    MessagesCarried,
    RetainedCleared,
    RetainedSnapshot,
)
from eventstore.format.positions import (
    Position,
    format_position,
    from_runs,
)
from eventstore.format.sealing import SealedArea
from eventstore.format.stored_properties import on_clock
from projections.past.event_text import ERASURE_WORDS, first_payloads
from projections.past.message_story import topic_of
from projections.views.replay_view import position_fields
from projections.views.session_view import Published, Topics


def event_object(
    event: Event,
    at: Position,
    time_ms: int,
    topics: Topics,
    area: memoryview | SealedArea | None,
    jumped_ms: int = 0,
) -> dict[str, object]:
    """Return an event as a JSON object.

    ``time_ms`` is the time of its record (Unix, milliseconds), ``area`` the payload area of the
    record, or None to leave payloads out, ``jumped_ms`` as in :func:`words`.
    """
    fields: dict[str, object] = {
        "position": format_position(at),
        "time": display.iso(time_ms),
        "type": event.e,
    }
    columns = {"e", "v", "at", "pids", "refs", "topics", "which", "sizes", "properties"}
    columns |= {"blocks", "block_of", "blocks_at"}
    if isinstance(event, RetainedSnapshot):
        columns.add("qos")
    elif isinstance(event, MessagesCarried):
        columns.add("waiting")
    fields |= {
        name: value
        for name, value in field_values(on_clock(event, jumped_ms)).items()
        if name not in columns or (name == "properties" and value is not None)
    }
    if isinstance(event, (MessagePublished, MessagesCarried, RetainedSnapshot)):
        fields["messages"] = _message_objects(event, at, area)
        return fields
    if isinstance(event, (RetainedCleared, RetainedExpired, *ERASURE_WORDS)):
        fields["topics"] = getattr(event, "topics", [])
        return fields
    if isinstance(event, MessageDropped) and event.topics:
        fields["topics"] = event.topics
    if isinstance(event, CheckpointCompleted):
        fields["begun"] = format_position(event.begun)
    elif isinstance(event, LogCut):
        fields["begins"] = display.iso(event.begins_ms)
        del fields["begins_ms"]
    elif isinstance(event, (ReplayOpened, ReplayReached)):
        fields |= position_fields(event)
    pids, refs = from_runs(getattr(event, "pids", ())), from_runs(getattr(event, "refs", ()))
    if refs:
        fields["messages"] = _ref_objects(refs, pids, topics)
    elif pids:
        fields["packet_ids"] = pids
    if isinstance(event, WillArmed):
        fields["topic"] = event.topic
        if area is not None:
            fields.update(display.payload_field(first_payloads(event, area, 1)[0]))
    return fields


def _message_objects(
    event: MessagePublished | MessagesCarried | RetainedSnapshot,
    at: Position,
    area: memoryview | SealedArea | None,
) -> list[dict[str, object]]:
    """Return published or repeated messages.

    A repeated one has two positions, of which one applies from this event on.
    """
    payloads = first_payloads(event, area, event.count) if area is not None else []
    pids = from_runs(event.pids) if isinstance(event, MessagePublished) else []
    refs = [] if isinstance(event, MessagePublished) else from_runs(event.refs)
    waiting = set(from_runs(event.waiting)) if isinstance(event, MessagesCarried) else set()
    moved = isinstance(event, RetainedSnapshot) and event.session is None
    objects: list[dict[str, object]] = []
    for offset in range(event.count):
        message: dict[str, object] = {"position": format_position(at + offset)}
        if refs:
            here, there = message["position"], format_position(refs[offset])
            message = (
                {"position": here, "was": there} if moved else {"position": there, "also": here}
            )
        message["topic"] = topic_of(event, offset)
        message["size"] = event.sizes if isinstance(event.sizes, int) else event.sizes[offset]
        if isinstance(event, RetainedSnapshot):
            message["qos"] = event.qos[offset]
        if offset < len(pids):
            message["packet_id"] = pids[offset]
        if payloads:
            message.update(display.payload_field(payloads[offset]))
        if refs and refs[offset] in waiting:
            message["waiting"] = True
        objects.append(message)
    return objects


def _ref_objects(
    refs: Sequence[Position], pids: Sequence[int], topics: Topics
) -> list[dict[str, object]]:
    objects: list[dict[str, object]] = []
    for offset, ref in enumerate(refs):
        message: Published | None = topics.get(ref)
        objects.append(
            {
                "position": format_position(ref),
                **({"topic": message.topic, "size": message.size} if message is not None else {}),
                **({"packet_id": pids[offset]} if offset < len(pids) else {}),
            }
        )
    return objects
