"""Problems of clients in sentences: evidence, likely cause, and the next command."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from cli.common import text
from cli.logs.next_commands import shell_word, show_session
from eventstore.display import clock
from eventstore.reasons import BROKER_ENDS, close_text, drop_text
from protocol.mqtt.shared_filters import SHARE

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


def merge_advice(problems: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return problems in order, the most urgent first, each reported once.

    Drops because of a full queue are reported with the queue, those of denied messages with the
    denial.
    """
    known = {
        (one["client"], one["code"]): dict(one) for one in problems if one["code"] in _MERGED_CODES
    }
    found: list[Mapping[str, Any]] = []
    for one in problems:
        client = one["client"]
        if one["code"] == "drops":
            left = dict(one["by"])
            full = known.get((client, "queue_full"))
            if full is not None:
                full["lost"] = left.pop("queue_messages", 0) + left.pop("queue_bytes", 0)
                full["since_ms"] = one.get("since_ms")
            if (client, "denied") in known:
                left.pop("not_permitted", None)
            if left:
                ages = one.get("ages_ms", {})  # a broker of an older version has one age for all
                age_ms = min((ages[reason] for reason in left if reason in ages), default=None)
                about = {"by": left, "count": sum(left.values())}
                found.append({**one, **about, "age_ms": age_ms or one["age_ms"]})
        else:
            found.append(known.get((client, one["code"]), one))
    return sorted(found, key=lambda one: (RANKS.get(one["code"], len(RANKS)), str(one["client"])))


def advise(problem: Mapping[str, Any]) -> Advice:
    """Return a problem of a client as text."""
    client = problem["client"]
    severity, describe = _KINDS.get(problem["code"], ("warning", _unknown))
    title, evidence, cause, command = describe(problem)
    if not problem.get("lasts", True):
        severity, title = "notice", _PAST[problem["code"]]
    return Advice(severity, text.name(client), title, evidence, cause, command, client)


def most_urgent_first(advice: Iterable[Advice]) -> list[Advice]:
    """Return advice in the order of severity, otherwise as it was."""
    return sorted(advice, key=lambda one: _SEVERITIES.index(one.severity))


def _begin(problem: Mapping[str, Any]) -> str:
    """Return the start of a problem's counters, as text."""
    since_ms = problem.get("since_ms")
    return clock(since_ms) if since_ms else "the broker's start"  # the latter by an older broker


def _since(problem: Mapping[str, Any]) -> str:
    return text.duration(problem["age_ms"])


def oldest(problem: Mapping[str, Any]) -> str:
    """Return for how long the oldest delivery waits; the first connection may be over."""
    connections = problem.get("connections", 1)
    if connections > 1:  # a shared subscription may have given it another one meanwhile
        which = "the oldest" if problem.get("slow") else "some"
        return f"{which} for at least {_since(problem)} on its last {connections:,} connections"
    least = "at least " if problem.get("resumed") else ""
    return f"the oldest for {least}{_since(problem)}"


def _behind(problem: Mapping[str, Any]) -> str:
    return f"{problem['queued']:,} wait behind them" if problem["queued"] else "none waits yet"


def show_client(one: Mapping[str, Any]) -> str:
    """Return the command that shows the client of a problem, which may have no session any more."""
    if one.get("session", True):
        return show_session(one["client"])
    return f"foldmq log --session {shell_word(one['client'])} -n 5"


_Described = tuple[str, str, str, str]


def _window_full(one: Mapping[str, Any]) -> _Described:
    return (
        "does not acknowledge: its window is full",
        (
            f"{one['outstanding']:,} of {one['window']:,} messages for {text.name(one['filter'])} "
            f"are unacknowledged, {oldest(one)}; {_behind(one)}"
        ),
        (
            "the client hangs, or processes messages more slowly than they come, or never sends "
            "its acknowledgements (setting max_ack_pending)"
        ),
        f"foldmq actors tail --client {shell_word(one['client'])}",
    )


def _receive_maximum(one: Mapping[str, Any]) -> _Described:
    return (
        "does not acknowledge: its Receive Maximum is reached",
        (
            f"{text.count_of(one['outstanding'], 'message')} unacknowledged, all that the client "
            f"allows, {oldest(one)}; {_behind(one)}"
        ),
        (
            "the client hangs, or processes messages more slowly than they come, or asked for too "
            "small a Receive Maximum"
        ),
        f"foldmq actors tail --client {shell_word(one['client'])}",
    )


def _unacknowledged(one: Mapping[str, Any]) -> _Described:
    of = ", ".join(f"{count:,} for {text.name(name)}" for name, count in one["filters"].items())
    shared = (
        "; what a member of a shared subscription was sent goes to the others when it disconnects"
        if any(name.startswith(SHARE) for name in one["filters"])
        else ""
    )
    again = ", although sent again after ack_wait" if one["sent_again"] else ""
    return (
        "does not acknowledge",
        (
            f"{text.count_of(one['count'], 'message')} unacknowledged ({of}), "
            f"{oldest(one)}{again}; nothing was acknowledged for "
            f"{text.duration(one['quiet_ms'])}, and the client last sent something "
            f"{text.duration(one['silent_ms'])} ago"
        ),
        (f"the client hangs or is stopped, or never sends its acknowledgements{shared}"),
        show_session(one["client"]),
    )


def _slow_acks(one: Mapping[str, Any]) -> _Described:
    return (
        "acknowledges slowly",
        (
            f"{text.count_of(one['count'], 'message')} unacknowledged, {oldest(one)}; the last "
            f"acknowledgement came {text.duration(one['quiet_ms'])} ago"
        ),
        "the client processes messages more slowly than they come, or never acknowledges some",
        show_session(one["client"]),
    )


def _queue_full(one: Mapping[str, Any]) -> _Described:
    by_messages = one["queue"] != "queue_bytes"
    limit = "max_queued_messages" if by_messages else "max_queued_bytes"
    held = (
        f"{one['queued']:,} of {one['max_queued']:,} messages wait"
        if by_messages
        else f"{text.count_of(one['queued'], 'message')} with {one['queued_bytes']:,} of "
        f"{one['max_queued_bytes']:,} bytes wait"
    )
    if one.get("lost"):
        lost = text.count_of(one["lost"], "message")
        held += f", {lost} dropped since {_begin(one)}"
    room = one["max_queued_bytes"] - one["queued_bytes"]
    above = f" that is larger than {room:,} bytes" if not by_messages and room > 0 else ""
    return (
        "loses messages: its queue is full",
        f"{held}; each further one{above} is dropped ({limit})",
        _why_queue_grows(one),
        show_session(one["client"]),
    )


def _queue_filling(one: Mapping[str, Any]) -> _Described:
    return (
        "will lose messages soon: its queue is filling",
        (
            f"{one['queued']:,} of {one['max_queued']:,} messages wait, "
            f"{text.size(one['queued_bytes'])} of {text.size(one['max_queued_bytes'])}"
        ),
        _why_queue_grows(one),
        show_session(one["client"]),
    )


def _why_queue_grows(one: Mapping[str, Any]) -> str:
    if one["connected"]:
        return "the client is connected, but takes messages more slowly than they come"
    if one["offline_ms"] is None:
        return "no member takes messages"
    away = text.duration(one["offline_ms"])
    return (
        f"the client has been offline for {away}; if it does not come back, remove its session "
        "(foldmq sessions rm)"
    )


def _drops(one: Mapping[str, Any]) -> _Described:
    reasons = sorted(one["by"].items(), key=lambda item: -item[1])
    listed = "; ".join(f"{count:,}: {drop_text(reason)}" for reason, count in reasons[:_LISTED])
    only_counted = {reason: one.get("unrecorded", {}).get(reason, 0) for reason, _ in reasons}
    recorded = [reason == "expired" for reason, count in reasons if count > only_counted[reason]]
    types = "" if all(recorded) else "--type MessageDropped "
    if any(recorded):
        types += "--type Expired "
    without = sum(only_counted.values())
    counted = f"; {without:,} without an event of their own in the log" if without else ""
    return (
        "lost messages",
        (
            f"{text.count_of(one['count'], 'message')} since {_begin(one)}, the last "
            f"{_since(one)} ago ({listed}){counted}"
        ),
        _CAUSES.get(reasons[0][0], "see the reasons above"),
        f"foldmq log {types}--session {shell_word(one['client'])} -n 5"
        if recorded
        else show_client(one),
    )


_CAUSES = {
    "queue_messages": "it was offline, or took messages more slowly than they came",
    "queue_bytes": "it was offline, or took messages more slowly than they came",
    "slow_reader": "its connection or the client is slower than the messages that it subscribed to",
    "not_permitted": "the permissions do not allow what the client does",
    "expired": "messages waited longer than their Message Expiry Interval",
    "packet_too_large": "the client announced a Maximum Packet Size that is too small",
}


def _denied(one: Mapping[str, Any]) -> _Described:
    asked = sorted(one["what"].items(), key=lambda item: -item[1])[:_LISTED]
    listed = ", ".join(f"{_asked(what)} {text.count_of(count, 'time')}" for what, count in asked)
    return (
        "is denied what it asks for",
        f"{listed}; the last {_since(one)} ago",
        "the permissions forbid it, or the client uses a wrong topic",
        _permission_check(one, asked[0][0]) or show_client(one),
    )


def _permission_check(one: Mapping[str, Any], what: str) -> str | None:
    """Return the command that names the rule behind a denial; None: something is not known for it.

    The broker names the permission file, if that decided, and the user. It cuts and escapes topics.
    """
    action, _, topic = what.partition(" ")
    path, user, groups = one.get("permissions"), one.get("user"), one.get("groups") or ()
    words = ["-" if user is None else user, one["client"], action, topic]
    known = path and user != "-" and action in ("publish", "subscribe", "history")
    exact = "\\" not in topic and not topic.endswith(" more)")
    if not known or not exact or not "".join([*words, *groups, path or ""]).isprintable():
        return None
    flags = [f"--permissions {shlex.quote(path or '')}"]
    flags += [f"--group {shlex.quote(group)}" for group in groups]
    quoted = [shlex.quote(word) for word in words]
    if any(word.startswith("-") and word != "-" for word in words):
        return " ".join(["foldmq acl check", *flags, "--", *quoted])
    return " ".join(["foldmq acl check", *quoted, *flags])


def _asked(what: str) -> str:
    action, _, topic = what.partition(" ")
    return f"{text.escaped(action)} {text.name(topic)}"


def _duplicate(one: Mapping[str, Any]) -> _Described:
    hosts = one["hosts"]
    listed = " and ".join(text.escaped(host) or "a Unix socket" for host in hosts)
    if len(hosts) > 1:
        cause = (
            "two programs on different hosts use the same client identifier and disconnect each "
            "other, or the client moves between networks and connects again before its old "
            "connection has ended"
        )
    else:
        cause = (
            "two programs use the same client identifier and disconnect each other, or the client "
            "lost its network and connects again before the broker has noticed"
        )
    return (
        "connects again and again while it is connected",
        (
            f"{_capped(one['recent_takeovers'])} of its connections were taken over in the last 10 "
            f"minutes, the last {_since(one)} ago; {'' if len(hosts) > 1 else 'all '}from {listed}"
        ),
        cause,
        f"foldmq log --type SessionOpened --session {shell_word(one['client'])} -n 6",
    )


def _capped(count: int) -> str:
    """Return a number of events of a client; the broker remembers only the latest ones."""
    return f"{count:,} or more" if count >= _REMEMBERED else f"{count:,}"


_LOST: Final = BROKER_ENDS | {
    *("", "closed", "disconnect", "error", "keep_alive", "kicked", "taken_over")
}
"""Reasons for ends of connections that do not come from what the client sent or may do."""


def _flapping(one: Mapping[str, Any]) -> _Described:
    ended = f", the last {_since(one)} ago" if "age_ms" in one else ""  # not by an older broker
    ended += f", the last end: {close_text(one['last_close'])}" if one["last_close"] else ""
    return (
        "connects again and again",
        (
            f"{_capped(one['recent'])} connects in the last minute, {one['connects']:,} since "
            f"{_begin(one)}; {_capped(one['failed'])} of its connections ended without a "
            f"DISCONNECT in the last minute{ended}"
        ),
        "the client fails after it connected, or its network does"
        if one["last_close"] in _LOST
        else "the broker ends its connections because of what the client sends or is allowed to",
        f"foldmq log --type SessionClosed --session {shell_word(one['client'])} -n 6",
    )


def _stuck_release(one: Mapping[str, Any]) -> _Described:
    return (
        "does not complete QoS 2 deliveries",
        f"{text.count_of(one['count'], 'PUBREL')} without PUBCOMP, {oldest(one)}",
        "the client hangs, or does not implement QoS 2",
        f"foldmq actors tail --client {shell_word(one['client'])}",
    )


def _stuck_publish(one: Mapping[str, Any]) -> _Described:
    state = "has sent nothing for half a minute" if one["connected"] else "is offline"
    return (
        "does not complete QoS 2 publications",
        (
            f"{text.count_of(one['count'], 'message')} without PUBREL, which are not "
            f"delivered; the client {state}"
        ),
        "the client lost its state, hangs, or does not implement QoS 2",
        show_session(one["client"]),
    )


def _slow_reader(one: Mapping[str, Any]) -> _Described:
    return (
        "reads too slowly",
        (
            f"{text.size(one['unsent'])} wait in its connection ({text.escaped(one['address'])}); "
            f"from {text.size(one['max_unsent'])} on messages at QoS 0 are dropped "
            "(max_outbound_bytes)"
        ),
        "its network or the client is slower than the messages that it subscribed to",
        show_session(one["client"]),
    )


def _no_member(one: Mapping[str, Any]) -> _Described:
    return (
        "has no connected member",
        (
            f"{text.count_of(one['queued'], 'message')} in the queue; none of "
            f"{text.count_of(one['members'], 'member')} is connected"
        ),
        "all clients of the shared subscription are offline",
        show_session(one["client"]),
    )


_REPLAY_STOPPED: Final[dict[str, tuple[str, str]]] = {
    "damaged": ("a record of the log is damaged", "foldmq log verify"),
    "too_many_topics": ("its filter has more than 10,000 topics", ""),
    "withheld": ("the client lost the right history, or subscribe", ""),
}


def _replay_stopped(one: Mapping[str, Any]) -> _Described:
    cause, command = _REPLAY_STOPPED.get(one["state"], (text.escaped(one["state"]), ""))
    return (
        "gets no more messages of a replay",
        f"{text.escaped(one['filter'])} is {text.escaped(one['state'])}",
        cause + (f": {command} says which" if command else ""),
        show_session(one["client"]),
    )


def _replay_behind(one: Mapping[str, Any]) -> _Described:
    state = "its client reads too slowly" if one["connected"] else "its client is offline"
    return (
        "loses messages of a replay at the next cut of the log",
        f"{text.escaped(one['filter'])} has not read the oldest part of the log",
        f"{state}, and keep or keep_bytes is reached soon",
        show_session(one["client"]),
    )


def _unknown(one: Mapping[str, Any]) -> _Described:
    return text.escaped(one["code"]), "", "", show_session(one["client"])


_KINDS: dict[str, tuple[Severity, Callable[[Mapping[str, Any]], _Described]]] = {
    "queue_full": ("problem", _queue_full),
    "window_full": ("problem", _window_full),
    "receive_maximum": ("problem", _receive_maximum),
    "unacknowledged": ("problem", _unacknowledged),
    "duplicate": ("problem", _duplicate),
    "no_member": ("problem", _no_member),
    "slow_reader": ("problem", _slow_reader),
    "stuck_release": ("problem", _stuck_release),
    "replay_stopped": ("problem", _replay_stopped),
    "drops": ("warning", _drops),
    "denied": ("warning", _denied),
    "flapping": ("warning", _flapping),
    "slow_acks": ("warning", _slow_acks),
    "queue_filling": ("warning", _queue_filling),
    "replay_behind": ("warning", _replay_behind),
    "stuck_publish": ("warning", _stuck_publish),
}
"""The kinds of problems, the most urgent first."""

_PAST = {
    "duplicate": "connected again and again while it was connected; it no longer does",
    "denied": "was denied what it asked for",
    "flapping": "connected again and again; it no longer does",
}
"""Titles of problems that are over."""

RANKS = {code: rank for rank, code in enumerate(_KINDS)}
"""The order in which they are shown."""
