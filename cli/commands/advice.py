"""Problems of clients in sentences: evidence, likely cause, and the next command."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from cli.common import text
from cli.logs.next_commands import shell_word, show_session
from eventstore.display import clock
from eventstore.reasons import BROKER_ENDS, close_text, drop_text
from protocol.mqtt.shared_filters import SHARE

Problem = Mapping[str, Any]
Severity = Literal["problem", "warning", "notice"]
"""In the order of urgency."""
_SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "notice")

_MERGED_CODES = ("queue_full", "denied")
"""Problems whose sentences include drops."""
_REMEMBERED = 16
"""Number of connects and takeovers of a client that the broker remembers."""
_LISTED = 4
"""Maximum topics and reasons named in a sentence."""


class Advice(NamedTuple):
    """A problem as text."""

    severity: Severity
    subject: str
    """The client, or the log; escaped."""
    title: str
    evidence: str
    cause: str
    next: str
    """The next command."""
    client: str | None = None
    """The client that it is about, if it has a session."""


def merge_advice(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems in order, the most urgent first, each reported once.

    Drops because of a full queue are reported with the queue, those of denied messages with the
    denial.
    """
    by_code = {
        (each["client"], each["code"]): dict(each)
        for each in problems
        if each["code"] in _MERGED_CODES
    }
    merged: list[Problem] = []
    for each in problems:
        client = each["client"]
        if each["code"] != "drops":
            merged.append(by_code.get((client, each["code"]), each))
            continue
        counts = dict(each["by"])
        full = by_code.get((client, "queue_full"))
        if full is not None:
            full["lost"] = counts.pop("queue_messages", 0) + counts.pop("queue_bytes", 0)
            full["since_ms"] = each.get("since_ms")
        if (client, "denied") in by_code:
            counts.pop("not_permitted", None)
        if counts:
            ages = each.get("ages_ms", {})
            age_ms = min((ages[reason] for reason in counts if reason in ages), default=None)
            about = {"by": counts, "count": sum(counts.values())}
            merged.append({**each, **about, "age_ms": age_ms or each["age_ms"]})
    return sorted(
        merged, key=lambda each: (RANKS.get(each["code"], len(RANKS)), str(each["client"]))
    )


def advise(problem: Problem) -> Advice:
    """Return a problem of a client as text."""
    client = problem["client"]
    kind = _KINDS.get(problem["code"])
    if kind is None:
        title = text.escaped(problem["code"])
        return Advice("warning", text.name(client), title, "", "", show_session(client), client)
    cause = kind.cause if isinstance(kind.cause, str) else kind.cause(problem)
    command = kind.next
    command = command.format(shell_word(client)) if isinstance(command, str) else command(problem)
    is_over = not problem.get("lasts", True)
    return Advice(
        "notice" if is_over else kind.severity,
        text.name(client),
        kind.past if is_over else kind.title,
        kind.evidence(problem),
        cause,
        command,
        client,
    )


def most_urgent_first(advice: Iterable[Advice]) -> list[Advice]:
    """Return advice in the order of severity, otherwise as it was."""
    return sorted(advice, key=lambda entry: _SEVERITIES.index(entry.severity))


def _begin(problem: Problem) -> str:
    """Return the start of a problem's counters, as text."""
    since_ms = problem.get("since_ms")
    return clock(since_ms) if since_ms else "the broker's start"  # the latter by an older broker


def _since(problem: Problem) -> str:
    return text.duration(problem["age_ms"])


def oldest(problem: Problem) -> str:
    """Return for how long the oldest delivery waits; the first connection may be over."""
    connections = problem.get("connections", 1)
    if connections > 1:  # a shared subscription may have given it another one meanwhile
        which = "the oldest" if problem.get("slow") else "some"
        return f"{which} for at least {_since(problem)} on its last {connections:,} connections"
    least = "at least " if problem.get("resumed") else ""
    return f"the oldest for {least}{_since(problem)}"


def _behind(problem: Problem) -> str:
    return f"{problem['queued']:,} wait behind them" if problem["queued"] else "none waits yet"


def show_client(problem: Problem) -> str:
    """Return the command that shows the client of a problem, which may have no session any more."""
    if problem.get("session", True):
        return show_session(problem["client"])
    return f"foldmq log --session {shell_word(problem['client'])} -n 5"


def _named_session(problem: Problem) -> str:
    return show_session(problem["client"])


class _Kind(NamedTuple):
    """What is known of problems of a code."""

    severity: Severity
    title: str
    evidence: Callable[[Problem], str]
    cause: str | Callable[[Problem], str]
    next: str | Callable[[Problem], str] = _named_session
    """The next command; ``{}`` is the client."""
    past: str = ""
    """The title once it is over."""


_TAIL: Final = "foldmq actors tail --client {}"


def _unacknowledged(problem: Problem) -> str:
    by_filter = problem["filters"].items()
    listed = ", ".join(f"{count:,} for {text.name(name)}" for name, count in by_filter)
    again = ", although sent again after ack_wait" if problem["sent_again"] else ""
    return (
        f"{text.count_of(problem['count'], 'message')} unacknowledged ({listed}), "
        f"{oldest(problem)}{again}; nothing was acknowledged for "
        f"{text.duration(problem['quiet_ms'])}, and the client last sent something "
        f"{text.duration(problem['silent_ms'])} ago"
    )


def _why_unacknowledged(problem: Problem) -> str:
    shared = (
        "; what a member of a shared subscription was sent goes to the others when it disconnects"
        if any(name.startswith(SHARE) for name in problem["filters"])
        else ""
    )
    return f"the client hangs or is stopped, or never sends its acknowledgements{shared}"


def _full_queue(problem: Problem) -> str:
    by_messages = problem["queue"] != "queue_bytes"
    limit = "max_queued_messages" if by_messages else "max_queued_bytes"
    held = (
        f"{problem['queued']:,} of {problem['max_queued']:,} messages wait"
        if by_messages
        else f"{text.count_of(problem['queued'], 'message')} with {problem['queued_bytes']:,} of "
        f"{problem['max_queued_bytes']:,} bytes wait"
    )
    if problem.get("lost"):
        lost = text.count_of(problem["lost"], "message")
        held += f", {lost} dropped since {_begin(problem)}"
    room = problem["max_queued_bytes"] - problem["queued_bytes"]
    above = f" that is larger than {room:,} bytes" if not by_messages and room > 0 else ""
    return f"{held}; each further one{above} is dropped ({limit})"


def _why_queue_grows(problem: Problem) -> str:
    if problem["connected"]:
        return "the client is connected, but takes messages more slowly than they come"
    if problem["offline_ms"] is None:
        return "no member takes messages"
    away = text.duration(problem["offline_ms"])
    return (
        f"the client has been offline for {away}; if it does not come back, remove its session "
        "(foldmq sessions rm)"
    )


def _by_count(problem: Problem) -> list[tuple[str, int]]:
    """Return the reasons of drops, the most frequent first."""
    return sorted(problem["by"].items(), key=lambda item: -item[1])


def _drops(problem: Problem) -> str:
    reasons = _by_count(problem)
    listed = "; ".join(f"{count:,}: {drop_text(reason)}" for reason, count in reasons[:_LISTED])
    uncounted = sum(problem.get("unrecorded", {}).get(reason, 0) for reason, _ in reasons)
    more = f"; {uncounted:,} without an event of their own in the log" if uncounted else ""
    return (
        f"{text.count_of(problem['count'], 'message')} since {_begin(problem)}, the last "
        f"{_since(problem)} ago ({listed}){more}"
    )


def _drop_events(problem: Problem) -> str:
    """Return the command that lists the events of drops; without any, that shows the client."""
    unrecorded = problem.get("unrecorded", {})
    reasons = [name for name, count in _by_count(problem) if count > unrecorded.get(name, 0)]
    if not reasons:
        return show_client(problem)
    types = "--type MessageDropped " if {*reasons} - {"expired"} else ""
    types += "--type Expired " if "expired" in reasons else ""
    return f"foldmq log {types}--session {shell_word(problem['client'])} -n 5"


_CAUSES: Final = {
    "queue_messages": "it was offline, or took messages more slowly than they came",
    "queue_bytes": "it was offline, or took messages more slowly than they came",
    "slow_reader": "its connection or the client is slower than the messages that it subscribed to",
    "not_permitted": "the permissions do not allow what the client does",
    "expired": "messages waited longer than their Message Expiry Interval",
    "packet_too_large": "the client announced a Maximum Packet Size that is too small",
}


def _denials(problem: Problem) -> list[tuple[str, int]]:
    return sorted(problem["what"].items(), key=lambda item: -item[1])[:_LISTED]


def _denied(problem: Problem) -> str:
    counts = ((_asked(what), text.count_of(count, "time")) for what, count in _denials(problem))
    return f"{', '.join(map(' '.join, counts))}; the last {_since(problem)} ago"


def _permission_check(problem: Problem) -> str:
    """Return the command that names the rule behind a denial; else one that shows the client.

    The broker names the permission file, if that decided, and the user. It cuts and escapes topics.
    """
    action, _, topic = _denials(problem)[0][0].partition(" ")
    path, user = problem.get("permissions"), problem.get("user")
    groups = problem.get("groups") or ()
    words = ["-" if user is None else user, problem["client"], action, topic]
    is_known = path and user != "-" and action in ("publish", "subscribe", "history")
    exact = "\\" not in topic and not topic.endswith(" more)")
    if not is_known or not exact or not "".join([*words, *groups, path or ""]).isprintable():
        return show_client(problem)
    flags = [f"--permissions {shlex.quote(path or '')}"]
    flags += [f"--group {shlex.quote(group)}" for group in groups]
    quoted = [shlex.quote(word) for word in words]
    if any(word.startswith("-") and word != "-" for word in words):
        return " ".join(["foldmq acl check", *flags, "--", *quoted])
    return " ".join(["foldmq acl check", *quoted, *flags])


def _asked(what: str) -> str:
    action, _, topic = what.partition(" ")
    return f"{text.escaped(action)} {text.name(topic)}"


def _takeovers(problem: Problem) -> str:
    hosts = problem["hosts"]
    listed = " and ".join(text.escaped(host) or "a Unix socket" for host in hosts)
    return (
        f"{_capped(problem['recent_takeovers'])} of its connections were taken over in the last 10 "
        f"minutes, the last {_since(problem)} ago; {'' if len(hosts) > 1 else 'all '}from {listed}"
    )


def _why_takeovers(problem: Problem) -> str:
    if len(problem["hosts"]) > 1:
        return (
            "two programs on different hosts use the same client identifier and disconnect each "
            "other, or the client moves between networks and connects again before its old "
            "connection has ended"
        )
    return (
        "two programs use the same client identifier and disconnect each other, or the client "
        "lost its network and connects again before the broker has noticed"
    )


def _capped(count: int) -> str:
    """Return a number of events of a client; the broker remembers only the latest ones."""
    return f"{count:,} or more" if count >= _REMEMBERED else f"{count:,}"


_LOST: Final = BROKER_ENDS | {
    *("", "closed", "disconnect", "error", "keep_alive", "kicked", "taken_over")
}
"""Reasons for ends of connections that do not come from what the client sent or may do."""


def _flapping(problem: Problem) -> str:
    last_close = problem["last_close"]
    ended = f", the last {_since(problem)} ago" if "age_ms" in problem else ""
    ended += f", the last end: {close_text(last_close)}" if last_close else ""
    return (
        f"{_capped(problem['recent'])} connects in the last minute, {problem['connects']:,} since "
        f"{_begin(problem)}; {_capped(problem['failed'])} of its connections ended without a "
        f"DISCONNECT in the last minute{ended}"
    )


def _why_flapping(problem: Problem) -> str:
    if problem["last_close"] in _LOST:
        return "the client fails after it connected, or its network does"
    return "the broker ends its connections because of what the client sends or is allowed to"


_REPLAY_STOPPED: Final[Mapping[str, str]] = {
    "damaged": "a record of the log is damaged: foldmq log verify says which",
    "too_many_topics": "its filter has more than 10,000 topics",
    "withheld": "the client lost the right history, or subscribe",
}

_KINDS: Final[Mapping[str, _Kind]] = {
    "queue_full": _Kind(
        "problem", "loses messages: its queue is full", _full_queue, _why_queue_grows
    ),
    "window_full": _Kind(
        "problem",
        "does not acknowledge: its window is full",
        lambda problem: (
            f"{problem['outstanding']:,} of {problem['window']:,} messages for "
            f"{text.name(problem['filter'])} are unacknowledged, {oldest(problem)}; "
            f"{_behind(problem)}"
        ),
        "the client hangs, or processes messages more slowly than they come, or never sends its "
        "acknowledgements (setting max_ack_pending)",
        _TAIL,
    ),
    "receive_maximum": _Kind(
        "problem",
        "does not acknowledge: its Receive Maximum is reached",
        lambda problem: (
            f"{text.count_of(problem['outstanding'], 'message')} unacknowledged, all that the "
            f"client allows, {oldest(problem)}; {_behind(problem)}"
        ),
        "the client hangs, or processes messages more slowly than they come, or asked for too "
        "small a Receive Maximum",
        _TAIL,
    ),
    "unacknowledged": _Kind(
        "problem", "does not acknowledge", _unacknowledged, _why_unacknowledged
    ),
    "duplicate": _Kind(
        "problem",
        "connects again and again while it is connected",
        _takeovers,
        _why_takeovers,
        "foldmq log --type SessionOpened --session {} -n 6",
        past="connected again and again while it was connected; it no longer does",
    ),
    "no_member": _Kind(
        "problem",
        "has no connected member",
        lambda problem: (
            f"{text.count_of(problem['queued'], 'message')} in the queue; none of "
            f"{text.count_of(problem['members'], 'member')} is connected"
        ),
        "all clients of the shared subscription are offline",
    ),
    "slow_reader": _Kind(
        "problem",
        "reads too slowly",
        lambda problem: (
            f"{text.size(problem['unsent'])} wait in its connection "
            f"({text.escaped(problem['address'])}); from {text.size(problem['max_unsent'])} on "
            "messages at QoS 0 are dropped (max_outbound_bytes)"
        ),
        "its network or the client is slower than the messages that it subscribed to",
    ),
    "stuck_release": _Kind(
        "problem",
        "does not complete QoS 2 deliveries",
        lambda problem: (
            f"{text.count_of(problem['count'], 'PUBREL')} without PUBCOMP, {oldest(problem)}"
        ),
        "the client hangs, or does not implement QoS 2",
        _TAIL,
    ),
    "replay_stopped": _Kind(
        "problem",
        "gets no more messages of a replay",
        lambda problem: f"{text.escaped(problem['filter'])} is {text.escaped(problem['state'])}",
        lambda problem: _REPLAY_STOPPED.get(problem["state"], text.escaped(problem["state"])),
    ),
    "drops": _Kind(
        "warning",
        "lost messages",
        _drops,
        lambda problem: _CAUSES.get(_by_count(problem)[0][0], "see the reasons above"),
        _drop_events,
    ),
    "denied": _Kind(
        "warning",
        "is denied what it asks for",
        _denied,
        "the permissions forbid it, or the client uses a wrong topic",
        _permission_check,
        past="was denied what it asked for",
    ),
    "flapping": _Kind(
        "warning",
        "connects again and again",
        _flapping,
        _why_flapping,
        "foldmq log --type SessionClosed --session {} -n 6",
        past="connected again and again; it no longer does",
    ),
    "slow_acks": _Kind(
        "warning",
        "acknowledges slowly",
        lambda problem: (
            f"{text.count_of(problem['count'], 'message')} unacknowledged, {oldest(problem)}; the "
            f"last acknowledgement came {text.duration(problem['quiet_ms'])} ago"
        ),
        "the client processes messages more slowly than they come, or never acknowledges some",
    ),
    "queue_filling": _Kind(
        "warning",
        "will lose messages soon: its queue is filling",
        lambda problem: (
            f"{problem['queued']:,} of {problem['max_queued']:,} messages wait, "
            f"{text.size(problem['queued_bytes'])} of {text.size(problem['max_queued_bytes'])}"
        ),
        _why_queue_grows,
    ),
    "replay_behind": _Kind(
        "warning",
        "loses messages of a replay at the next cut of the log",
        lambda problem: (
            f"{text.escaped(problem['filter'])} has not read the oldest part of the log"
        ),
        lambda problem: (
            f"its client {'reads too slowly' if problem['connected'] else 'is offline'}, and keep "
            "or keep_bytes is reached soon"
        ),
    ),
    "stuck_publish": _Kind(
        "warning",
        "does not complete QoS 2 publications",
        lambda problem: (
            f"{text.count_of(problem['count'], 'message')} without PUBREL, which are not "
            "delivered; the client "
            + ("has sent nothing for half a minute" if problem["connected"] else "is offline")
        ),
        "the client lost its state, hangs, or does not implement QoS 2",
    ),
}
"""The kinds of problems, the most urgent first."""

RANKS: Final = {code: rank for rank, code in enumerate(_KINDS)}
"""The order in which they are shown."""
