"""Problems of the destinations of the outbox in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cli.commands.advice import Advice, Severity
from cli.common import text
from cli.logs.next_commands import SERVER_LOG, shell_word

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_TENTH: Final = 10


def advise_on_destinations(status: Mapping[str, Any]) -> Iterator[Advice]:
    """Yield the problems of the destinations of a broker, from its reply to ``status``."""
    for row in status.get("destinations") or ():
        yield from _advise(row, status["time_ms"])


def _advise(row: Mapping[str, Any], now_ms: int) -> Iterator[Advice]:
    name = shell_word(row["name"])
    subject = f"destination {text.name(row['name'])}"
    error = text.escaped(row["error"] or "", 300)
    shown, behind_ms = f"foldmq outbox show {name}", row["behind_ms"]
    behind = text.duration(behind_ms)
    if row["state"] == "away":
        yield Advice(
            "problem",
            subject,
            "gets no messages",
            "the process of the outbox does not report",
            "it starts, or it ends again and again: the log of the broker says why",
            SERVER_LOG,
        )
    elif row["state"] == "misconfigured":
        yield Advice(
            "problem",
            subject,
            "takes no messages with these settings",
            error,
            "an address, password, file or name is wrong, not the messages: they wait in the log",
            shown,
        )
    elif row["state"] == "paused":
        yield Advice(
            "notice",
            subject,
            "is paused",
            f"{text.count_of(row['records_behind'], 'record')} of the log wait",
            "an operator has paused it",
            f"foldmq outbox resume {name}",
        )
    elif behind_ms >= _MINUTE_MS:
        severity, cause = _urgency(behind_ms, round(row["kept_s"] * 1000))
        yield Advice(
            severity,
            subject,
            "is behind",
            f"its oldest message has waited for {behind}" + (f": {error}" if error else ""),
            cause,
            shown,
        )
    elif row["state"] == "retrying" and now_ms - row["since_ms"] >= _MINUTE_MS:
        yield Advice(
            "warning",
            subject,
            "cannot be reached",
            f"{error}, for {text.duration(now_ms - row['since_ms'])}; no message waits a minute",
            "its server is away, or its address is wrong",
            shown,
        )
    if row["refused"]:
        yield Advice(
            "warning",
            subject,
            "refused messages",
            text.count_of(row["refused"], "message"),
            "it will never accept them as they are; they are not sent again by themselves",
            f"foldmq outbox refused {name}",
        )
    if row["losses"]:
        yield Advice(
            "problem",
            subject,
            "has lost messages",
            f"{text.count_of(row['losses'], 'range')} of the log were not sent to it",
            "it was further behind than its bounds permit",
            "foldmq log --type ForwardLost",
        )


def _urgency(behind_ms: int, kept_ms: int) -> tuple[Severity, str]:
    """Return how urgent a delay is, and its meaning; the log is kept for ``kept_ms``, 0: always."""
    waits = "its server is away or too slow; its messages wait in the log"
    if kept_ms and behind_ms + min(_DAY_MS, kept_ms // 2) >= kept_ms:
        remaining = text.duration(max(0, kept_ms - behind_ms))
        return "problem", f"{waits}, which keeps them for {remaining} more"
    if behind_ms >= _HOUR_MS or (kept_ms and behind_ms >= kept_ms // _TENTH):
        return "warning", waits
    return "notice", waits


def destinations_text(rows: list[Mapping[str, Any]]) -> str:
    """Return the destinations of a broker in one line."""
    states = [row["state"] for row in rows]
    parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    behind_ms = max(row["behind_ms"] for row in rows)
    if behind_ms:
        parts.append(f"at most {text.duration(behind_ms)} behind")
    return ", ".join(parts)
