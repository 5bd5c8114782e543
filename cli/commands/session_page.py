"""A session, connection or subscription of a running broker as text."""

from collections.abc import Iterator, Mapping
from typing import Any

from cli.commands.status_totals import dropped_by
from cli.common import text
from cli.common.tables import duration_text, idle
from eventstore.display import clock
from eventstore.format.positions import format_position
from eventstore.reasons import close_text, pause_text
from projections.past.subscription_text import options_text

Found = Mapping[str, Any]

_PROTOCOLS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}
_FULL = "--full shows all"
_ANY = 65_535
"""The Receive Maximum of a client that declares none."""
_NEVER = 0xFFFFFFFF
"""The Session Expiry Interval of a session that does not expire."""
_LOAD = 1000.0
"""Minimum work in microseconds per second that is shown."""


def session_lines(found: Found, rates: Found | None, now_ms: int) -> Iterator[str]:
    """Yield a session in full, as text."""
    actor = f" ({text.escaped(found['actor'])})" if found["actor"] is not None else ""
    yield f"session {text.name(found['client'])}{actor}, as of {format_position(found['position'])}"
    connection = found["connection"]
    if connection is not None:
        yield from connection_lines(connection, rates, now_ms)
    elif found["connected"]:
        yield "  connected"
    elif found.get("shared_with") is None:
        yield f"  offline since {_since(found['closed_ms'], now_ms)}"
    if found.get("shared_with") is None:
        yield f"  {_kind(found, now_ms)}"
        yield from history_lines(found, now_ms)
    else:
        yield from _members(found["shared_with"])
    yield from _bounds(found)
    yield from _subscriptions(found["subscriptions"])
    yield from _sent("in flight, not acknowledged", found["inflight"], now_ms)
    yield from _sent("PUBREC received, waiting for PUBCOMP", found["releasing"], now_ms)
    inbound = found["inbound"]
    if inbound["total"]:
        yield f"  received at QoS 2, waiting for PUBREL: {inbound['total']:,}"
        for row in inbound["rows"]:
            yield f"    packet {row['pid']:<6} {_message(row)}{_waits(row, now_ms)}"
        yield from _more(inbound)
    if found["queued"]:
        oldest = found["oldest"]
        first = ""
        if oldest is not None:
            first = f"; the oldest: {_message(oldest)}{_waits(oldest, now_ms)}"
        count = text.count_of(found["queued"], "message")
        yield f"  queue: {count}, {text.size(found['queued_bytes'])}{first}"
    will = found["will"]
    if will is not None:
        retained = " retained" if will["retain"] else ""
        delay = f", {will['delay']} s after the connection ends" if will.get("delay") else ""
        yield (
            f"  will: {text.name(will['topic'])} QoS {will['qos']}{retained} "
            f"(position {format_position(will['ref'])}){delay}"
        )
    if found["actors"]:
        yield "  actors:"
        for row in found["actors"]:
            yield f"    {actor_words(row, now_ms)}"
        yield from _more(found["subscriptions"])


def history_lines(found: Found, now_ms: int) -> Iterator[str]:
    """Yield the history of a client."""
    parts = []
    if found.get("connects", 0):
        parts.append(text.count_of(found["connects"], "connect"))
    if found.get("takeovers"):
        parts.append(text.count_of(found["takeovers"], "takeover"))
    if found.get("last_close"):
        when = _ago(found["last_close_ms"], now_ms)
        parts.append(f"last end {when}: {close_text(found['last_close'])}")
    since_ms = found.get("counted_since_ms")
    since = clock(since_ms) if since_ms else "the start"  # the latter by an older broker
    if parts:
        yield f"  since {since}: {', '.join(parts)}"
    elif found.get("dropped") or found.get("denied"):
        yield f"  counted since {since}"
    if found.get("dropped"):
        count = text.count_of(found["dropped"], "message")
        yield f"  dropped: {count}, the last {_ago(found['dropped_ms'], now_ms)}"
        for line in dropped_by(found["dropped_by"]):
            yield f"    {line}"
    if found.get("denied"):
        listed = ", ".join(text.name(what) for what in found.get("denied_what", ()))
        yield f"  denied: {found['denied']:,} ({listed})"


def _ago(then_ms: int, now_ms: int) -> str:
    return f"{text.duration(max(0, now_ms - then_ms))} ago"


def connection_lines(found: Found, rates: Found | None, now_ms: int) -> Iterator[str]:
    """Yield a connection as text, without a heading."""
    protocol = _PROTOCOLS.get(found["level"] or 0, f"level {found['level']}")
    address, actor = text.escaped(found["address"]), text.escaped(found["id"])
    if found.get("via"):
        address += f" via node {text.escaped(found['via'])}"
    if found["connected_ms"] is None:
        yield f"  from {address} ({actor}), not logged in yet"
    else:
        lasted = text.duration(now_ms - found["connected_ms"])
        keep = f"keep alive {found['keep_alive']} s" if found["keep_alive"] else "no keep alive"
        yield f"  connected for {lasted} from {address} ({actor})"
        yield f"  {protocol}{' bridge' if found.get('bridge') else ''}, {keep}"
    for way in ("in", "out"):
        yield f"  {way:<4}{_traffic(found, rates, way)}"
    waits = []
    if found["unsent"]:
        waits.append(f"{text.size(found['unsent'])} not read by the client")
    if found["gated"]:
        waits.append(f"{text.size(found['gated'])} wait for the disk")
    if found["paused"]:
        why = ", ".join(map(pause_text, found["paused"]))
        waits.append(f"reading paused: {why}")
    if waits:
        yield f"  {'; '.join(waits)}"


def _traffic(found: Found, rates: Found | None, way: str) -> str:
    count, size = found[f"messages_{way}"], text.size(found[f"bytes_{way}"])
    total = f"{text.count_of(count, 'message')}, {size} in all"
    if rates is None:
        return total
    messages, size = rates[f"messages_{way}_per_s"], text.size(round(rates[f"bytes_{way}_per_s"]))
    return f"{messages:,.1f} messages/s, {size}/s; {total}"


def subscription_lines(found: Found, _now_ms: int) -> Iterator[str]:
    """Yield the subscription of a connected session as text."""
    yield f"  of {text.name(found['client'])}, filter {text.name(found['filter'])}"
    if "qos" in found:
        parts = [f"QoS {found['qos']}"]
        if found["qos"] or found["outstanding"]:
            parts.append(f"{_window(found)} in flight")
        if found["qos"] or found["queued"]:
            parts.append(_queued(found))
        yield f"  {', '.join(parts)}"
    yield (
        f"  {text.count_of(found['matched'], 'message')} matched, {found['replayed']:,} retained "
        "ones sent at the beginning"
    )


def actor_words(row: Found, now_ms: int) -> str:
    """Return an actor's counters on a line."""
    last = idle(row["last_active_ms"], now_ms)
    load = f" ({row['recent_us_per_s'] / 1e4:.1f} %)" if row["recent_us_per_s"] >= _LOAD else ""
    return (
        f"{text.escaped(row['id'])}  {text.escaped(row['state'])}, {row['handled']:,} handled, "
        f"mailbox {row['mailbox']:,}/{row['high_water']:,}, "
        f"{'never active' if last is None else f'idle {last}'}, "
        f"busy {duration_text(row['busy_us'] / 1000)}{load}"
    )


def _since(then_ms: int, now_ms: int) -> str:
    return f"{text.clock(then_ms)} ({text.duration(now_ms - then_ms)})"


def _kind(found: Found, now_ms: int) -> str:
    user = f", user {text.name(found['user'])}" if found["user"] is not None else ""
    if found["clean"]:
        return f"clean session{user}: it ends with its connection"
    expires = found["expires_ms"]
    if expires is not None:
        return (
            f"persistent session{user}, expires {text.clock(expires)} "
            f"(in {text.duration(max(0, expires - now_ms))})"
        )
    if not found["connected"]:
        return f"persistent session{user}, does not expire"
    asked = found.get("expiry")
    if asked is None:
        return f"persistent session{user}"
    return (
        f"persistent session{user}, session expiry {'never' if asked == _NEVER else f'{asked} s'}"
    )


def _subscriptions(found: Found) -> Iterator[str]:
    if not found["total"]:
        yield "  no subscriptions"
        return
    yield f"  subscriptions: {found['total']:,}"
    for row in found["rows"]:
        options = options_text(row.get("options", 0))
        granted = (
            f"QoS {row['qos']}{options}" if row["active"] else "unsubscribed, deliveries pending"
        )
        parts = [granted]
        if row.get("identifier"):
            parts.append(f"identifier {row['identifier']}")
        if row["qos"] or row["outstanding"]:
            parts.append(f"{_window(row)} in flight")
        if row["queued"]:
            parts.append(_queued(row))
            if row["oldest"] is not None:
                parts.append(f"the oldest is message {format_position(row['oldest'])}")
        yield f"    {text.name(row['filter'])}  {', '.join(parts)}"
    yield from _more(found)


def _members(found: Found) -> Iterator[str]:
    """Yield the members of a shared subscription."""
    yield f"  shared subscription, members: {found['total']:,}"
    for row in found["rows"]:
        state = "connected" if row["connected"] else "offline"
        granted = "" if row["qos"] is None else f", QoS {row['qos']}"
        yield f"    {text.name(row['client'])}  {state}{granted}, {_window(row)} in flight"
    yield from _more(found)


def _bounds(found: Found) -> Iterator[str]:
    """Yield the limits that the client declared (MQTT 5)."""
    parts = []
    if found.get("receive_maximum", _ANY) < _ANY:
        parts.append(f"{found['receive_maximum']:,} unfinished deliveries")
    if found.get("packet_maximum"):
        parts.append(f"packets of {text.size(found['packet_maximum'])}")
    if parts:
        yield f"  accepts at most {' and '.join(parts)}"


def _window(row: Found) -> str:
    return f"{row['outstanding']:,} of {row['window']:,}"


def _queued(row: Found) -> str:
    if not row["queued"]:
        return "nothing queued"
    return f"{row['queued']:,} queued ({text.size(row['queued_bytes'])})"


def _sent(title: str, found: Found, now_ms: int) -> Iterator[str]:
    if not found["total"]:
        return
    yield f"  {title}: {found['total']:,}"
    for row in found["rows"]:
        sent = f"last sent {text.duration(now_ms - row['sent_ms'])} ago"
        if row.get("published_ms") is not None:
            sent = f"published {text.duration(now_ms - row['published_ms'])} ago, {sent}"
        retained = " retained" if row["retain"] else ""
        yield (
            f"    packet {row['pid']:<6} {_message(row)}, QoS {row['qos']}{retained}, "
            f"for {text.name(row['filter'])}, {sent}"
        )
    yield from _more(found)


def _message(row: Found) -> str:
    topic = f" {text.name(row['topic'])}" if row["topic"] is not None else ""
    return f"message {format_position(row['ref'])}{topic}"


def _waits(row: Found, now_ms: int) -> str:
    then_ms = row.get("published_ms")
    return "" if then_ms is None else f", waiting for {text.duration(now_ms - then_ms)}"


def _more(found: Found) -> Iterator[str]:
    hidden = found["total"] - len(found["rows"])
    if hidden > 0:
        yield f"    and {hidden:,} more ({_FULL})"
