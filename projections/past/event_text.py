"""Events of the log as text."""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from eventstore import display
from eventstore.format.destination_events import (
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.erasure_events import (
    COPIES,
    FOLLOWED,
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Refused,
    SessionClosed,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
    WillArmed,
)
from eventstore.format.name_entries import topic_shown
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointCompleted,
    ClockJumped,
    LimitsApplied,
    LogArchived,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    OperatorActed,
    RetainedSnapshot,
    SessionSnapshot,
    WebAccessed,
)
from eventstore.format.positions import (
    Run,
    format_position,
    from_runs,
)
from eventstore.format.records import payload_bounds
from eventstore.format.sealing import SealedArea, part_of
from eventstore.format.stored_properties import expiry_ms, on_clock
from eventstore.reading import position_text
from eventstore.reasons import (
    close_text,
    cut_text,
    drop_text,
    expiry_text,
    leader_text,
    resend_text,
)
from projections.log_proof import cause, unproven_end
from projections.views.replay_view import opened_text, place_text, reached_text
from projections.views.session_text import options_text
from projections.views.session_view import Topics
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.shared_filters import SHARE

_LEVELS = {3: ["MQTT 3.1"], 4: [], 5: ["MQTT 5"]}
_PAYLOADS_SHOWN = 3
_WITH_MESSAGES = (MessagePublished, MessagesCarried, RetainedSnapshot)
"""Events that have a payload for each of several messages."""


def words(event: Event, topics: Topics, jumped_ms: int = 0) -> str:
    """Return an event as text, without its session.

    Topics of messages that ``topics`` has not loaded are left out. ``jumped_ms`` is the sum of the
    jumps of the clock up to the event, which expiries do not include.
    """
    return _WORDS[event.e](on_clock(event, jumped_ms), topics)


def payload_words(event: Event, area: memoryview | SealedArea) -> str:
    """Return the payloads of an event as text, the first few of them; empty if it has none."""
    payloads = first_payloads(event, area, _PAYLOADS_SHOWN)
    if not payloads:
        return ""
    total = event.count if isinstance(event, _WITH_MESSAGES) else 1
    return ": " + position_text.several(map(display.payload_text, payloads), total)


def first_payloads(event: Event, area: memoryview | SealedArea, most: int) -> list[bytes]:
    """Return the payloads of an event, at most so many."""
    if isinstance(event, _WITH_MESSAGES):
        pairs = itertools.islice(itertools.pairwise(payload_bounds(event)), most)
        return [part_of(area, start, stop) for start, stop in pairs]
    if isinstance(event, WillArmed):
        return [part_of(area, event.at, event.at + event.size)]
    return []


def _ids(runs: list[Run]) -> str:
    noun = "packet" if len(runs) == 1 and isinstance(runs[0], int) else "packets"
    return f"{noun} {position_text.packet_ids_text(runs)}"


def _names(names: Collection[str]) -> str:
    return position_text.several(map(display.name, names), len(names))


def _total(event: MessagePublished | MessagesCarried | RetainedSnapshot) -> str:
    """Return the size of all payloads of an event."""
    sizes = event.sizes
    return display.size(sizes * event.count if isinstance(sizes, int) else sum(sizes))


def _messages(refs: list[Run], topics: Topics) -> str:
    """Return the topics and positions of messages: ``hall/door (5.0)``."""
    values = from_runs(refs)
    if not values:
        return ""
    names = {message.topic: None for ref in values if (message := topics.get(ref)) is not None}
    where = position_text.positions_text(refs)
    label = "" if len(values) == 1 else f"{len(values):,} messages "
    if not names:  # from before the log begins
        return f"message {where}" if len(values) == 1 else f"{label}{where}"
    return f"{_names(names)} ({label}{where})"


def _opened(event: SessionOpened, _topics: Topics) -> str:
    kind = "session resumed" if event.resumed else "new session"
    parts = [kind, *(["clean"] if event.clean else [])]
    parts += ["clean start"] if event.clean_start else []
    parts += _LEVELS.get(event.level, [f"protocol level {event.level}"])
    parts += ["bridge"] if event.bridge else []
    if event.keep_alive:
        parts.append(f"keep alive {event.keep_alive} s")
    if event.user is not None:
        parts.append(f"user {display.name(event.user)}")
    if event.level >= 5 and event.expiry is not None:
        parts.append(f"session expiry {_interval(event.expiry)}")
    if event.receive_maximum != 65_535:
        parts.append(f"receive maximum {event.receive_maximum}")
    if event.packet_maximum:
        parts.append(f"packets of {display.size(event.packet_maximum)} at most")
    origin = f" from {display.escaped(event.address)}" if event.address else ""
    if event.via:
        origin += f" via node {display.escaped(event.via)}"
    return f"connected{origin}: {', '.join(parts)}"


def _interval(seconds: int) -> str:
    return "never" if seconds == 0xFFFFFFFF else f"{seconds} s"


def _closed(event: SessionClosed, _topics: Topics) -> str:
    code = f" (reason code 0x{event.code:02x})" if event.code else ""
    changed = f", session expiry {_interval(event.expiry)}" if event.expiry is not None else ""
    waits = f", its will waits {event.grace} s" if event.grace else ""
    return f"connection ended: {close_text(event.reason)}{code}{changed}{waits}"


def _published(event: MessagePublished, _topics: Topics) -> str:
    what = "" if event.count == 1 else f" {event.count:,} messages to"
    verb = "will published" if event.will else "published"
    retained = " retained" if event.retain else ""
    more = f", {_ids(event.pids)}" if event.pids else ""
    if event.origins:
        more += f", from {position_text.positions_text(list(event.origins))} of its log"
    return f"{verb}{what} {_names(event.topics)} QoS {event.qos}{retained}, {_total(event)}{more}"


def _delivered(event: Delivered, topics: Topics) -> str:
    origin = " from the queue" if event.queued >= 0 else ""
    retained = " retained" if event.retain or event.rap else ""
    return (
        f"sent{origin} {_messages(event.refs, topics)} QoS {event.qos}{retained}, "
        f"{_ids(event.pids)}, for {display.name(event.filter)}"
    )


def _queued(event: Queued, topics: Topics) -> str:
    back = "" if event.behind < 0 else " again"
    until = ""
    if isinstance(event.expires, int) and event.expires:
        until = f", until {display.clock(expiry_ms(event.expires))}"
    return (
        f"queued{back} {_messages(event.refs, topics)} QoS {event.qos}, "
        f"{display.size(event.size)}{until}, for {display.name(event.filter)}"
    )


def _dropped(event: MessageDropped, topics: Topics) -> str:
    what = _messages(event.refs, topics) or display.count_of(event.count, "message")
    where = " from the queue" if event.queued >= 0 else ""
    by = f" for {display.name(event.filter)}" if event.filter else ""
    if event.topics:
        what += f" to {_names(event.topics)}"
    shared = event.session.startswith(SHARE)
    why = drop_text(event.reason, received=bool(event.refs), shared=shared)
    return f"dropped{where} {what}{by}: {why}"


_BY_THE_BROKER = {
    0x95: "too large for the client",
    0x98: "the client may not read the topic any more, or its content was erased",
}
"""Why the broker ends a delivery by itself, by a reason code that clients cannot send."""


def _answered(verb: str, packet: str) -> Callable[[Any, Topics], str]:
    """Return the text of answers to deliveries, or that the broker ended these by itself.

    Reason codes are in the notation of the standard: ``0x87``.
    """

    def text(event: Acked | Received | Refused | Completed, _topics: Topics) -> str:
        codes = dict.fromkeys(from_runs(event.reasons))
        if codes and codes.keys() <= _BY_THE_BROKER.keys() and not isinstance(event, Completed):
            why = " or ".join(_BY_THE_BROKER[code] for code in sorted(codes))
            return f"not sent again {_ids(event.pids)}: {why}"
        shown = position_text.several((f"0x{code:02x}" for code in codes), len(codes))
        return f"{verb} {_ids(event.pids)} ({f'{packet} {shown}'.strip()})"

    return text


def _assigned(event: Assigned, topics: Topics) -> str:
    origin = " from the queue" if event.queued >= 0 else ""
    return f"assigned{origin} {_messages(event.refs, topics)} to {display.name(event.member)}"


def _granted(event: Subscribed, _topics: Topics) -> str:
    options = event.options or [0] * len(event.filters)
    granted = (
        f"{display.name(name)} QoS {qos}{options_text(bits)}"
        for (name, qos), bits in zip(event.filters, options, strict=False)
    )
    identifier = f", identifier {event.identifier}" if event.identifier else ""
    return f"subscribed {position_text.several(granted, len(event.filters))}{identifier}"


def _denied(event: SubscriptionDenied, _topics: Topics) -> str:
    denied: dict[int, list[str]] = {}
    for name, code in zip(event.filters, from_runs(event.reasons), strict=False):
        denied.setdefault(code, []).append(name)
    return "subscription denied: " + "; ".join(
        f"{_names(filters)}: {denial_text(code)}" for code, filters in denied.items()
    )


def _limits(event: LimitsApplied, _topics: Topics) -> str:
    parts = [
        f"{display.escaped(str(name))} {display.escaped(str(value))}"
        for name, value in event.limits.items()
    ]
    parts.append(f"permissions {display.escaped(event.permissions)}" if event.permissions else "")
    parts.append(f"users {display.escaped(event.users)}" if event.users else "")
    return f"limits: {', '.join(filter(None, parts))}"


def reason_text(code: int) -> str:
    """Return a reason code of MQTT 5 with its name in the standard: ``0x87 (not authorized)``."""
    try:
        name = ReasonCode(code).name.replace("_", " ").lower()
    except ValueError:
        return f"0x{code:02x}"
    return f"0x{code:02x} ({name})"


def denial_text(code: int) -> str:
    """Return why a subscription was denied, from its reason code, as a sentence."""
    return _DENIALS.get(code) or reason_text(code)


_DENIALS: dict[int, str] = {
    ReasonCode.NOT_AUTHORIZED: "the permissions do not allow this subscription (permissions)",
    ReasonCode.QUOTA_EXCEEDED: "it has as many as the limits allow (max_subscriptions, "
    "max_wildcards, max_wildcard_patterns, max_shared_members, max_subscriptions_total)",
    ReasonCode.TOPIC_FILTER_INVALID: "the filter is not allowed",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "it may not share subscriptions "
    "(shared_for_mqtt3)",
}


def _will_armed(event: WillArmed, _topics: Topics) -> str:
    retained = " retained" if event.retain else ""
    delay = f", {event.delay} s after the connection ends" if event.delay else ""
    return (
        f"left a will for {display.name(event.topic)} QoS {event.qos}{retained}, "
        f"{display.size(event.size)}{delay}"
    )


def _snapshot(event: SessionSnapshot, _topics: Topics) -> str:
    state = event.state
    away = "connected" if state.get("connected") else "away"
    held = state.get("subscriptions")
    count = len(held) if isinstance(held, list) else 0
    whole = "" if event.part == 0 and event.last else f", part {event.part + 1} of its state"
    return f"repeated: session {away}, {display.count_of(count, 'subscription')}{whole}"


def _retained(event: RetainedSnapshot, _topics: Topics) -> str:
    if event.session is None:
        return _repeated("retained", event)
    whose = "its" if event.count == 1 else "their"
    return _repeated(f"waiting for {whose} PUBREL to be retained", event)


def _repeated(what: str, event: RetainedSnapshot | MessagesCarried) -> str:
    label = "" if event.count == 1 else f"{event.count:,} messages "
    places = position_text.positions_text(event.refs)
    return f"repeated: {what}: {_names(event.topics)} ({label}from {places}), {_total(event)}"


def _clock_jumped(event: ClockJumped, _topics: Topics) -> str:
    if event.seen == "confirmed":
        return f"an operator confirmed the clock: {display.duration(event.ms)} off count"
    direction = "forward" if event.ms > 0 else "back"
    when = "while the broker ran" if event.seen == "running" else "before this start"
    size = display.duration(abs(event.ms))
    return f"the clock jumped {direction} by {size} {when}; nothing expires because of it"


def _completed(event: CheckpointCompleted, _topics: Topics) -> str:
    sessions = display.count_of(event.sessions, "session")
    retained = display.count_of(event.retained, "retained message")
    begun = format_position(event.begun)
    return f"checkpoint {event.checkpoint} (from {begun}) complete: {sessions}, {retained}"


def _cut(event: LogCut, _topics: Topics) -> str:
    return (
        f"log cut before record {event.first} of {display.clock(event.begins_ms)}: "
        f"{cut_text(event.reason)}"
    )


def _salvaged(event: LogSalvaged, _topics: Topics) -> str:
    which = f"record {event.first}"
    if event.end > event.first:
        which = f"records {event.first} to {event.end}"
    text = (
        f"{which} given up by foldmq salvage, run by {display.name(event.by)} on "
        f"{display.name(event.source)}: {display.count_of(event.records, 'record')}, "
        f"{event.bytes:,} bytes"
    )
    if event.affected:
        names = position_text.several(
            [display.name(name) for name in event.sessions[:3]], event.affected
        )
        text += f"; state unsure: {display.count_of(event.affected, 'session')}: {names}"
    return text


def _unproven(event: LogEndUnproven, _topics: Topics) -> str:
    return f"end of the log not proven: {cause(unproven_end(event, at=event.end + 1))}"


def _archived(event: LogArchived, _topics: Topics) -> str:
    where, by = display.name(event.where), display.name(event.by)
    return f"log archived up to record {event.through} in {where}, reported by {by}"


def _acted(event: OperatorActed, topics: Topics) -> str:
    action = display.escaped(event.action.replace("_", " "))
    text = f"operator {display.name(event.by)}: {action} {display.name(event.target)}"
    return f"{text}, {_messages(event.refs, topics)}" if event.refs else text


def _destination_opened(event: DestinationOpened, _topics: Topics) -> str:
    filters = _names(event.filters)
    what = f"destination {display.name(event.to)} ({display.escaped(event.kind)})"
    if event.run:
        return f"{what} continues: {filters}"
    return f"{what} opened: {filters}, after {place_text(event.after)}"


def _forwarded(event: Forwarded, topics: Topics) -> str:
    text = f"{display.name(event.to)} has its messages up to {place_text(event.through)}"
    if event.received > event.through:
        text += f", and received up to {place_text(event.received)}"
    text += f": {event.count} more" if event.count else ""
    return f"{text}, again {_messages(event.refs, topics)}" if event.refs else text


def _forward_refused(event: ForwardRefused, topics: Topics) -> str:
    code = f"{event.code}: " if event.code else ""
    reason = code + display.escaped(event.reason)
    return f"{display.name(event.to)} refused {_messages(event.refs, topics)}: {reason}"


def _forward_lost(event: ForwardLost, _topics: Topics) -> str:
    number = "messages" if event.messages < 0 else f"{event.messages} messages"
    return (
        f"{number} after {place_text(event.after)}, up to {place_text(event.until)}, are "
        f"not sent to {display.name(event.to)}: {display.escaped(event.reason)}"
    )


def _origin_taken(event: OriginTaken, topics: Topics) -> str:
    place = f"log {display.name(event.log)} up to {format_position(event.through)}"
    what = f" {_messages(event.refs, topics)}" if event.refs else ""
    return f"{display.name(event.client)} brought{what or ' the messages'} of {place}"


def _web_accessed(event: WebAccessed, _topics: Topics) -> str:
    if event.outcome.startswith("token_"):
        change = display.escaped(event.outcome.removeprefix("token_"))
        end = display.escaped(event.expires)
        return (
            f"web page: token {display.name(event.name)} {change}, "
            f"role {display.escaped(event.role)}, "
            f"expires {end if end == 'never' else f'at {end}'}"
        )
    noun = "change" if event.outcome == "denied" else "login"
    what = noun if event.count == 1 else display.count_of(event.count, noun)
    if event.outcome != "login":
        what += f" {display.escaped(event.outcome)}"
    reason = f" ({display.escaped(event.reason.replace('_', ' '))})" if event.reason else ""
    origin = display.escaped(event.address) if event.address else "many addresses"
    token = f", token {display.name(event.name)}" if event.name else ""
    role = f", role {display.escaped(event.role)}" if event.role else ""
    since = f", the first at {display.clock(event.first_ms)}" if event.count > 1 else ""
    return f"web page: {what}{reason} from {origin}{token}{role}{since}"


def _started(event: BrokerStarted, _topics: Topics) -> str:
    crash = " after a crash" if event.crashed else ""
    what = f"broker started{crash}, foldmq {display.escaped(event.software)}"
    if not event.epoch:
        return what
    cause = f": {leader_text(event.cause)}" if event.cause else ""
    return f"{what}: node {display.name(event.leader)} leads, epoch {event.epoch}{cause}"


_CAUSES: Final = {
    "restored": ", as before the log was restored",
    "keep": ", by personal_keep",
    FOLLOWED: ", as in another log",
    COPIES: ", as it had contents of another log that are erased there",
}


def _keyed(topics: Sequence[str], keys: Sequence[Run]) -> str:
    """Return topics with the numbers of their keys."""
    pairs = zip(topics, from_runs(keys), strict=True)
    shown = (f"{display.name(topic_shown(topic))} (key {key})" for topic, key in pairs)
    return position_text.several(shown, len(topics))


def _erasure_requested(event: ErasureRequested, _: Any) -> str:
    ended = ", periods that had ended" if event.before_ms else ""
    topics = _keyed(event.topics, event.keys)
    return (
        f"erasure {event.erasure} requested by {display.name(event.by)}"
        f"{_CAUSES.get(event.cause, '')}{ended}: {topics}"
    )


def _keys_snapshot(event: KeysSnapshot, _: Any) -> str:
    if not event.topics:
        return f"no topic has a key; the last one was {event.highest}"
    return f"keys of topics: {_keyed(event.topics, event.keys)}"


ERASURE_WORDS: Final[dict[type, Callable[..., str]]] = {
    TopicsKeyed: lambda event, _: f"sealed from here on: {_keyed(event.topics, event.keys)}",
    KeysSnapshot: _keys_snapshot,
    ErasureRequested: _erasure_requested,
    Erased: lambda event, _: (
        f"erasure {event.erasure} done: {display.count_of(event.keys, 'key')} destroyed"
    ),
}


_WORDS: dict[str, Callable[[Any, Topics], str]] = {
    "BrokerStarted": _started,
    "LimitsApplied": _limits,
    "BrokerStopped": lambda event, _: (
        f"broker stopped: node {display.escaped(event.to)} should lead"
        if event.to
        else "broker stopped"
    ),
    "LeaderProved": lambda event, _: f"the leader of epoch {event.epoch} proved that it leads",
    "SessionOpened": _opened,
    "SessionTakenOver": lambda event, _: f"taken over: connection {event.generation} is closed",
    "SessionClosed": _closed,
    "SessionExpired": lambda event, _: f"session ended: {expiry_text(event.reason)}",
    "Subscribed": _granted,
    "Unsubscribed": lambda event, _: f"unsubscribed {_names(event.filters)}",
    "SubscriptionDenied": _denied,
    "ReplayOpened": lambda event, _: opened_text(event),
    "ReplayReached": lambda event, _: reached_text(event),
    "MessagePublished": _published,
    "Delivered": _delivered,
    "Queued": _queued,
    "Redelivered": lambda event, _: f"sent again {_ids(event.pids)}: {resend_text(event.cause)}",
    "Acked": _answered("acknowledged", "PUBACK"),
    "Received": _answered("received", "PUBREC"),
    "Refused": _answered("refused", "PUBREC"),
    "Completed": _answered("completed", "PUBCOMP"),
    "Released": lambda event, topics: (
        f"released {_messages(event.refs, topics)}, {_ids(event.pids)} (PUBREL)"
    ),
    "InboundReplaced": lambda event, topics: (
        f"gave up {_messages(event.refs, topics)}, {_ids(event.pids)}: not released, and "
        "the client used the packet identifier for another message"
    ),
    "WillArmed": _will_armed,
    "WillFired": lambda _event, _: "will fired",
    "WillCancelled": lambda _event, _: "will discarded",
    "MessageDropped": _dropped,
    "Expired": lambda event, topics: (
        f"expired in the queue: {_messages(event.refs, topics)}, for {display.name(event.filter)}"
    ),
    "Assigned": _assigned,
    "Returned": lambda event, topics: (
        f"returned {_messages(event.refs, topics)}, {_ids(event.pids)}, "
        f"to {display.name(event.filter)}"
    ),
    "CheckpointBegun": lambda event, _: f"checkpoint {event.checkpoint} begun",
    "SessionSnapshot": _snapshot,
    "RetainedSnapshot": _retained,
    "CheckpointCompleted": _completed,
    "ClockJumped": _clock_jumped,
    "MessagesCarried": lambda event, _: _repeated("still to be delivered", event),
    "Bridged": lambda event, _: f"NATS has all publications up to {format_position(event.through)}",
    "DestinationOpened": _destination_opened,
    "Forwarded": _forwarded,
    "ForwardRefused": _forward_refused,
    "OriginTaken": _origin_taken,
    "ForwardLost": _forward_lost,
    "DestinationClosed": lambda event, _: (
        f"destination {display.name(event.to)} closed: {display.escaped(event.reason)}"
    ),
    "Followed": lambda event, _: (
        f"took the messages of log {display.name(event.log)} up to {place_text(event.through)}"
        + (f", without {_messages(event.expired, {})}, which had expired" if event.expired else "")
    ),
    "LogArchived": _archived,
    "LogCut": _cut,
    "LogEndUnproven": _unproven,
    "LogSalvaged": _salvaged,
    "OperatorActed": _acted,
    **{kind.__name__: text for kind, text in ERASURE_WORDS.items()},
    "RetainedCleared": lambda event, _: f"retained messages removed: {_names(event.topics)}",
    "RetainedExpired": lambda event, _: f"retained messages expired: {_names(event.topics)}",
    "WebAccessed": _web_accessed,
}
