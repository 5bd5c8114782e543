"""Connections and requests that the broker refused or ended, in sentences."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from cli.commands.advice import Advice, show_client
from cli.common import text
from cli.logs.next_commands import SERVER_LOG, shell_word

_Action = Literal["closed", "refused", "unsubscribed", "slowed", "denied"]

_MANY: Final = 10
"""Number in an hour from which errors of clients are a warning; the broker counts no more."""
_LONGEST: Final = 200
_CLOSES: Final = "foldmq log --type SessionClosed --session {} -n 6"
_SESSION: Final = "foldmq sessions show {}"
_TOP: Final = "foldmq top"
_STATUS: Final = "foldmq status"

_ACTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "closed": ("connection", "was closed", "were closed"),
    "refused": ("connection", "was refused", "were refused"),
    "unsubscribed": ("SUBSCRIBE", "was refused in part", "were refused in part"),
    "denied": ("request", "was refused", "were refused"),
    "slowed": ("SUBSCRIBE", "was delayed", "were delayed"),
}


class _RefusalText(NamedTuple):
    """The texts for a reason."""

    action: _Action
    why: str
    cause: str
    next: str
    """The next command; ``{}`` is the client, without which it is ``SERVER_LOG``."""
    fault: bool = False
    """Whether it is an error of a client: a few of them are no warning."""


_MANY_CLIENTS: Final = (
    "more clients than the limit allows for, or clients that leave connections open"
)
_IN_A_LOOP: Final = "clients that connect in a loop, or many that return at the same time"
_SLOW: Final = "the client or its network is slower than the messages that it subscribed to"
_TOO_MUCH: Final = "clients publish more than the limit allows for"
_AUTH: Final = "an error in the client's authentication, or an attack"

_REFUSALS: Final[Mapping[str, _RefusalText]] = {
    "connections": _RefusalText(
        "refused", "max_connections connections were open", _MANY_CLIENTS, _TOP
    ),
    "sessions": _RefusalText(
        "refused",
        "max_sessions sessions existed",
        "more clients than the limit allows for, or sessions of clients that do not come back "
        "(foldmq sessions rm)",
        _STATUS,
    ),
    "listener_connections": _RefusalText(
        "refused", "the listener had as many as its max_connections", _MANY_CLIENTS, _TOP
    ),
    "listener_rate": _RefusalText(
        "refused", "more in a second than connection_rate allows", _IN_A_LOOP, _TOP
    ),
    "address_connections": _RefusalText(
        "refused", "the address had max_connections_per_address", _MANY_CLIENTS, _TOP
    ),
    "address_rate": _RefusalText(
        "refused", "more in a second than connection_rate_per_address allows", _IN_A_LOOP, _TOP
    ),
    "user_connections": _RefusalText(
        "refused", "the user had max_connections_per_user", _MANY_CLIENTS, _TOP
    ),
    "user_rate": _RefusalText(
        "refused", "more in a second than connection_rate_per_user allows", _IN_A_LOOP, _TOP
    ),
    "overload": _RefusalText(
        "refused",
        "the broker was overloaded (overload_lag, overload_commit)",
        "clients cause more work than the processor or the disk can handle, or the log was not "
        "writable",
        _TOP,
    ),
    "unauthenticated": _RefusalText(
        "closed",
        "too many clients were not logged in (max_unauthenticated, max_unauthenticated_bytes)",
        "clients that open connections and send no CONNECT, or an attack",
        SERVER_LOG,
    ),
    "faults": _RefusalText(
        "refused",
        "the address is blocked for fault_backoff after errors (max_faults_per_address)",
        "a client at this address violates the protocol repeatedly",
        SERVER_LOG,
    ),
    "publish_debt": _RefusalText(
        "refused", "the address or user is above its publish rate", _TOO_MUCH, _TOP
    ),
    "flapping": _RefusalText(
        "refused",
        "the client connected too often (flapping_connects)",
        "the client fails after it connected, or two programs use its identifier",
        _CLOSES,
    ),
    "logins": _RefusalText(
        "refused",
        "too many logins waited for their check",
        "many clients return at the same time, or the checks are slow",
        _STATUS,
    ),
    "login": _RefusalText(
        "refused",
        "the login failed",
        "a wrong user name, password or token, or none",
        SERVER_LOG,
        fault=True,
    ),
    "login_backoff": _RefusalText(
        "refused",
        "the user or address had too many failed logins (login_failures)",
        "a client with an old password, or an attempt to guess passwords",
        SERVER_LOG,
    ),
    "authentication_method": _RefusalText(
        "refused",
        "the broker does not support the client's authentication method",
        "the client asks for a method that auth_method does not name",
        SERVER_LOG,
        fault=True,
    ),
    "auth_steps": _RefusalText(
        "closed", "the authentication had more packets than max_auth_steps", _AUTH, SERVER_LOG
    ),
    "auth_bytes": _RefusalText(
        "closed", "the authentication had more bytes than max_auth_bytes", _AUTH, SERVER_LOG
    ),
    "reauthentication": _RefusalText(
        "closed", "the client failed to authenticate again", _AUTH, _CLOSES
    ),
    "reauthentications": _RefusalText(
        "closed", "more re-authentications than max_reauthentications", _AUTH, _CLOSES
    ),
    "other_user": _RefusalText(
        "refused",
        "the session belongs to another user",
        "two users connect with the same client identifier",
        _SESSION,
        fault=True,
    ),
    "connect_timeout": _RefusalText(
        "closed",
        "no CONNECT came within connect_timeout",
        "something that opens connections and is no MQTT client (a port scan, a health check), or "
        "a bad network",
        SERVER_LOG,
        fault=True,
    ),
    "not_served": _RefusalText(
        "closed",
        "the broker did not answer the CONNECT within connect_timeout",
        "the broker, or the process with the client's log, was starting or busy, or the check of "
        "the login was slow; clients connect again",
        _STATUS,
    ),
    "tls_handshake": _RefusalText(
        "closed",
        "the TLS handshake failed",
        "the client does not trust the broker's certificate, has no certificate itself, or does "
        "not use TLS",
        SERVER_LOG,
        fault=True,
    ),
    "framing": _RefusalText(
        "closed",
        "the WebSocket or PROXY protocol was violated",
        "an error in the client or proxy, or one that does not use this protocol",
        SERVER_LOG,
        fault=True,
    ),
    "protocol_error": _RefusalText(
        "closed",
        "the client violated the protocol",
        "an error in the client, or a program that is not an MQTT client",
        _CLOSES,
        fault=True,
    ),
    "receive_maximum": _RefusalText(
        "closed",
        "the client had more messages unacknowledged than receive_maximum allows",
        "an error in the client: it ignores the Receive Maximum of the broker",
        _CLOSES,
        fault=True,
    ),
    "payload_format": _RefusalText(
        "refused",
        "the payload of the will is not UTF-8 as it says (check_payload_format)",
        "an error in the client",
        SERVER_LOG,
        fault=True,
    ),
    "message_too_large": _RefusalText(
        "closed",
        "the client published a message that fits into no record of the log",
        "messages of this size are not possible, whatever max_packet_size is",
        _CLOSES,
    ),
    "packet_too_large": _RefusalText(
        "closed",
        "the client accepts no packet as large as an answer that it needs",
        "the client asked for too small a Maximum Packet Size",
        _CLOSES,
        fault=True,
    ),
    "publish_rate": _RefusalText(
        "closed",
        "the client was above its publish rate for throttle_timeout",
        "the client publishes more than the limit allows for (publish_rate, publish_bytes)",
        _CLOSES,
    ),
    "slow_reader": _RefusalText(
        "closed", "the client read none of its output for slow_reader_time", _SLOW, _CLOSES
    ),
    "unread_bytes": _RefusalText(
        "closed", "slow clients had too much unread output (max_unread_bytes)", _SLOW, _CLOSES
    ),
    "subscribe_rate": _RefusalText(
        "slowed",
        "more subscriptions in a second than subscribe_rate allows",
        "the client subscribes and unsubscribes in a loop",
        _SESSION,
        fault=True,
    ),
    "subscriptions": _RefusalText(
        "unsubscribed",
        "the client had max_subscriptions subscriptions",
        "the client needs more, or never unsubscribes",
        _SESSION,
    ),
    "subscriptions_total": _RefusalText(
        "unsubscribed",
        "all clients together had max_subscriptions_total subscriptions",
        "the clients need more, or never unsubscribe",
        _STATUS,
    ),
    "shared_members": _RefusalText(
        "unsubscribed",
        "the shared subscription had max_shared_members members",
        "more members than the limit allows for",
        _SESSION,
    ),
    "replays": _RefusalText(
        "unsubscribed",
        "connected clients had max_replays replays",
        "more clients read the past at a time than the limit allows for",
        _SESSION,
    ),
    "replays_per_client": _RefusalText(
        "unsubscribed",
        "the client had max_replays_per_client replays",
        "the client never unsubscribes from replays that have ended",
        _SESSION,
    ),
    "wildcards": _RefusalText(
        "unsubscribed",
        "a filter had more wildcards than max_wildcards allows",
        "the client needs other filters",
        _SESSION,
    ),
    "wildcard_patterns": _RefusalText(
        "unsubscribed",
        "wildcards in more different places than max_wildcard_patterns allows",
        "the client needs other filters",
        _SESSION,
    ),
    "topic_levels": _RefusalText(
        "denied",
        "a topic or filter had more levels than max_topic_levels allows",
        "the client uses longer topics than the limit allows for",
        _SESSION,
    ),
    "new_names": _RefusalText(
        "refused",
        "new names from an address, or of a user, needed more than a tenth of the free keys in a "
        "day",
        "a client that makes up client identifiers, or many new ones at a time, which get their "
        "keys later: match fewer by personal_clients or personal_users",
        SERVER_LOG,
    ),
    "personal_keys": _RefusalText(
        "denied",
        "a personal topic or name needed a key, and there is no room for further ones",
        "erase contents or names, set personal_keep, or match fewer by personal_topics, "
        "personal_clients or personal_users",
        "foldmq erase --list",
    ),
}
_LARGE: Final = re.compile(r"packet of \d+ bytes, at most \d+ are accepted")
_LARGER: Final = "the client sends larger packets than it may: send less, or raise max_packet_size"
_UNKNOWN: Final = _RefusalText("refused", "", "a limit of the broker", SERVER_LOG)


def advise_on_refusals(refusals: Iterable[Mapping[str, Any]]) -> Iterator[Advice]:
    """Yield advice for each reason, the latest first.

    ``refusals`` are those in replies to ``problems``.
    """
    for refusal in sorted(refusals, key=lambda refusal: int(refusal["age_ms"])):
        yield _advice(refusal)


def _advice(refusal: Mapping[str, Any]) -> Advice:
    kind = _REFUSALS.get(refusal["reason"], _UNKNOWN)
    noun, was, were = _ACTIONS[kind.action]
    count = refusal["recent"]
    title = f"{was if count == 1 else were}: {kind.why or text.escaped(refusal['reason'])}"
    command, client = kind.next, refusal.get("client") or ""
    if "{}" in command:
        usable = client and client.isprintable() and not client.endswith(" more)")
        if command == _CLOSES and not refusal.get("closed", True):
            usable = False  # it was no session's connection yet
        filled = show_client(refusal) if command == _SESSION else command.format(shell_word(client))
        command = filled if usable else SERVER_LOG
    return Advice(
        "notice" if kind.fault and count < _MANY else "warning",
        f"a {noun}" if count == 1 else f"{noun}s",
        title,
        _evidence(refusal),
        _LARGER if _LARGE.match(str(refusal.get("error") or "")) else kind.cause,
        command,
    )


def _evidence(refusal: Mapping[str, Any]) -> str:
    """Return the time of the latest one, and its client or address."""
    when = f"{text.duration(refusal['age_ms'])} ago"
    recent, more = f"{refusal['recent']:,}", " or more" if refusal["recent"] >= _MANY else ""
    evidence = when
    if refusal["count"] > 1:
        evidence = f"{recent}{more} in the last hour, {refusal['count']:,} since the broker's start"
        evidence += f"; the last {when}"
    about = []
    if refusal.get("client"):
        about.append(f"client {text.name(refusal['client'])}")
    if refusal.get("user"):
        about.append(f"user {text.name(refusal['user'])}")
    if refusal.get("address"):
        about.append(f"from {text.escaped(refusal['address'])}")
    if refusal.get("listener"):
        about.append(f"listener {text.name(refusal['listener'])}")
    evidence = f"{evidence}: {', '.join(about)}" if about else evidence
    detail = refusal.get("error") or refusal.get("why")
    return f"{evidence} ({text.escaped(detail, _LONGEST)})" if detail else evidence
