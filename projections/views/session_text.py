"""A session as text: the same for a running broker, for the past and for every command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from eventstore import display
from eventstore.format.positions import format_position
from eventstore.reasons import close_text, dropped_by, pause_text
from projections.views.replay_view import replay_text
from projections.views.session_view import (
    DeliveryView,
    MemberView,
    MessageView,
    Part,
    SessionView,
    SubscriptionView,
    WillView,
)
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING

if TYPE_CHECKING:
    from projections.state.session import Will

_HANDLING = {0x10: " retained if new", 0x20: " nothing retained"}
OF_MEMBERS: Final = "each member with its own QoS"
"""In place of a granted QoS: the session of a shared subscription has none."""
PROTOCOLS: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}
_ANY = 65_535
"""The Receive Maximum of a client that declares none."""
_NEVER = 0xFFFF_FFFF
"""Session expiry in seconds of a session that does not expire."""


def session_lines(
    view: SessionView, as_of: object, now_ms: int, rates: Mapping[str, float] | None = None
) -> Iterator[str]:
    """Yield a session in full.

    ``rates`` are those of its connection; ages are relative to ``now_ms``, Unix time in
    milliseconds.
    """
    live = view.live or {}
    actor = f" ({display.escaped(live['actor'])})" if live.get("actor") is not None else ""
    yield f"session {display.name(view.session)}{actor} as of {as_of}"
    if view.unsure is not None:
        yield f"  {view.unsure}"
    if view.shared:
        yield from _members(view.members)
    else:
        if live.get("connection") is not None:
            yield from connection_lines(live["connection"], rates, now_ms)
        elif view.connected:
            yield f"  connected (connection {view.generation})"
        elif view.closed_ms is not None:
            since = f"{display.clock(view.closed_ms)} ({display.duration(now_ms - view.closed_ms)})"
            yield f"  offline since {since}"
        yield f"  {_kind(view, now_ms)}"
        yield from history_lines(live, now_ms)
    yield from _bounds(view)
    yield from _subscriptions(view.subscriptions, now_ms)
    yield from _deliveries("in flight, not acknowledged", view.in_flight, now_ms)
    yield from _deliveries("PUBREC received, waiting for PUBCOMP", view.releasing, now_ms)
    if view.inbound.total:
        yield f"  received at QoS 2, waiting for PUBREL: {view.inbound.total:,}"
        for row in view.inbound.rows:
            yield f"    packet {row.packet_id:<6} {_message(row)}{_waits(row, now_ms)}"
        yield from more_lines(view.inbound)
    if view.queued:
        count = display.count_of(view.queued, "message")
        oldest = view.oldest
        first = f"; the oldest: {_message(oldest)}{_waits(oldest, now_ms)}" if oldest else ""
        yield f"  queued: {count}, {display.size(view.queued_bytes)}{first}"
    if view.will is not None:
        yield f"  will {will_text(view.will)} (position {format_position(view.will.position)})"


def _kind(view: SessionView, now_ms: int) -> str:
    live = view.live or {}
    parts = [f"{'clean' if view.clean else 'persistent'} session"]
    if view.user is not None:
        parts.append(f"user {display.name(view.user)}")
    if live.get("connection") is None:
        parts += [PROTOCOLS[5]] if view.level == 5 else []
        parts += ["bridge"] if view.bridge else []
    if view.clean:
        return ", ".join(parts) + ": it ends with its connection"
    expires_ms = live.get("expires_ms")
    if expires_ms is not None:
        remaining = display.duration(max(0, expires_ms - now_ms))
        parts.append(f"expires {display.clock(expires_ms)} (in {remaining})")
    elif not view.connected and "expires_ms" in live:
        parts.append("does not expire")
    elif view.expiry is not None:
        parts.append(f"session expiry {expiry_text(view.expiry)}")
    return ", ".join(parts)


def expiry_text(seconds: int | None) -> str:
    """Return a session expiry interval as text; None: the setting of the broker."""
    if seconds is None:
        return "the broker's setting (session_expiry)"
    return "never" if seconds == _NEVER else f"{seconds} s"


def _bounds(view: SessionView) -> Iterator[str]:
    """Yield the limits that the client declared (MQTT 5)."""
    parts = []
    if view.receive_maximum < _ANY:
        parts.append(f"{view.receive_maximum:,} unfinished deliveries")
    if view.packet_maximum:
        parts.append(f"packets of {display.size(view.packet_maximum)}")
    if parts:
        yield f"  accepts at most {' and '.join(parts)}"


def _members(part: Part[MemberView] | None) -> Iterator[str]:
    if part is None:
        return
    yield f"  shared subscription of {display.count_of(part.total, 'member')}"
    for row in part.rows:
        state = "connected" if row.connected else "offline"
        yield f"    {display.name(row.session)}  {state}, {_granted(row)}{_window(row)}"
    yield from more_lines(part)


def _subscriptions(part: Part[SubscriptionView], now_ms: int) -> Iterator[str]:
    if not part.total:
        yield "  no subscriptions"
        return
    yield f"  subscriptions: {part.total:,}"
    for row in part.rows:
        queued = f", {queued_text(row.queued, row.queued_bytes)}" if row.queued else ""
        yield f"    {display.name(row.filter)}  {_granted(row)}{_window(row)}{queued}"
        if row.replay is not None:
            yield f"      {replay_text(row.replay, now_ms)}"
        for message in row.oldest:
            yield f"      {_message(message)}{_waits(message, now_ms)}"
        if row.queued > len(row.oldest):
            yield f"      and {row.queued - len(row.oldest):,} more"
    yield from more_lines(part)


def _granted(row: SubscriptionView | MemberView) -> str:
    identifier = f", identifier {row.identifier}" if row.identifier else ""
    if not row.active:
        return f"unsubscribed, deliveries pending{identifier}"
    if row.qos is None:
        return OF_MEMBERS
    return f"QoS {row.qos}{options_text(row.options)}{identifier}"


def options_text(bits: int) -> str:
    """Return the subscription options of MQTT 5 that are set, each preceded by a blank."""
    words = [" no local"] if bits & NO_LOCAL else []
    words += [" retain as published"] if bits & RETAIN_AS_PUBLISHED else []
    return "".join([*words, _HANDLING.get(bits & RETAIN_HANDLING, "")])


def _window(row: SubscriptionView | MemberView) -> str:
    if not (row.qos or row.outstanding):
        return ""
    if row.window is not None:
        return f", {row.outstanding:,} of {row.window:,} in flight"
    return f", {row.outstanding:,} in flight" if row.outstanding else ""


def queued_text(count: int, size: int) -> str:
    """Return the length of a queue."""
    return f"{count:,} queued ({display.size(size)})" if count else "nothing queued"


def _deliveries(title: str, part: Part[DeliveryView], now_ms: int) -> Iterator[str]:
    if not part.total:
        return
    yield f"  {title}: {part.total:,}"
    for row in part.rows:
        sent = f"last sent {display.duration(now_ms - row.sent_ms)} ago"
        if row.published_ms is not None:
            sent = f"published {display.duration(now_ms - row.published_ms)} ago, {sent}"
        retained = " retained" if row.retain else ""
        yield (
            f"    packet {row.packet_id:<6} {_message(row)}, QoS {row.qos}{retained}, "
            f"for {display.name(row.filter)}, {sent}"
        )
    yield from more_lines(part)


def _message(row: MessageView) -> str:
    topic = f" {display.name(row.topic)}" if row.topic is not None else ""
    size = f", {display.size(row.size)}" if row.size is not None else ""
    return f"message {format_position(row.position)}{topic}{size}"


def _waits(row: MessageView, now_ms: int) -> str:
    if row.published_ms is None:
        return ""
    return f", waiting for {display.duration(now_ms - row.published_ms)}"


def will_text(will: WillView | Will) -> str:
    """Return topic, QoS and delay of a will."""
    retained = " retained" if will.retain else ""
    delay = f", {will.delay} s after the connection ends" if will.delay else ""
    return f"{display.name(will.topic)} QoS {will.qos}{retained}{delay}"


def more_lines(part: Part[Any]) -> Iterator[str]:
    """Yield a line about the rows that are left out."""
    hidden = part.total - len(part.rows)
    if hidden > 0:
        yield f"    and {hidden:,} more (--full shows all)"


# ----------------------------------------------------------------------------- a running broker


def history_lines(facts: Mapping[str, Any], now_ms: int) -> Iterator[str]:
    """Yield the history of a client, as far as its broker has counted it."""

    def ago(then_ms: int) -> str:
        return f"{display.duration(max(0, now_ms - then_ms))} ago"

    parts = []
    if facts.get("connects"):
        parts.append(display.count_of(facts["connects"], "connect"))
    if facts.get("takeovers"):
        parts.append(display.count_of(facts["takeovers"], "takeover"))
    if facts.get("last_close"):
        parts.append(f"last end {ago(facts['last_close_ms'])}: {close_text(facts['last_close'])}")
    since_ms = facts.get("counted_since_ms")
    since = display.clock(since_ms) if since_ms else "the start"  # the latter by an older broker
    if parts:
        yield f"  since {since}: {', '.join(parts)}"
    elif facts.get("dropped") or facts.get("denied"):
        yield f"  counted since {since}"
    if facts.get("dropped"):
        count = display.count_of(facts["dropped"], "message")
        yield f"  dropped: {count}, the last {ago(facts['dropped_ms'])}"
        for line in dropped_by(facts["dropped_by"]):
            yield f"    {line}"
    if facts.get("denied"):
        listed: Iterable[str] = facts.get("denied_what", ())
        yield f"  denied: {facts['denied']:,} ({', '.join(map(display.name, listed))})"


def connection_lines(
    facts: Mapping[str, Any], rates: Mapping[str, float] | None, now_ms: int
) -> Iterator[str]:
    """Yield a connection, without a heading."""
    protocol = PROTOCOLS.get(facts["level"] or 0, f"level {facts['level']}")
    address, actor = display.escaped(facts["address"]), display.escaped(facts["id"])
    if facts.get("via"):
        address += f" via node {display.escaped(facts['via'])}"
    if facts["connected_ms"] is None:
        yield f"  from {address} ({actor}), not logged in yet"
    else:
        lasted = display.duration(now_ms - facts["connected_ms"])
        keep = f"keep alive {facts['keep_alive']} s" if facts["keep_alive"] else "no keep alive"
        yield f"  connected for {lasted} from {address} ({actor})"
        yield f"  {protocol}{' bridge' if facts.get('bridge') else ''}, {keep}"
    for way in ("in", "out"):
        yield f"  {way:<4}{_traffic(facts, rates, way)}"
    waits = []
    if facts["unsent"]:
        waits.append(f"{display.size(facts['unsent'])} not read by the client")
    if facts["gated"]:
        waits.append(f"{display.size(facts['gated'])} wait for the disk")
    if facts["paused"]:
        waits.append(f"reading paused: {', '.join(map(pause_text, facts['paused']))}")
    if waits:
        yield f"  {'; '.join(waits)}"


def _traffic(facts: Mapping[str, Any], rates: Mapping[str, float] | None, way: str) -> str:
    count, size = facts[f"messages_{way}"], display.size(facts[f"bytes_{way}"])
    total = f"{display.count_of(count, 'message')}, {size} in all"
    if rates is None:
        return total
    size = display.size(round(rates[f"bytes_{way}_per_s"]))
    return f"{rates[f'messages_{way}_per_s']:,.1f} messages/s, {size}/s; {total}"
