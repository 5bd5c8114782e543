"""Certificates and credentials that have expired, will soon, or are not valid yet, in sentences.

The rows are those of the field ``certificates`` of the status. ``foldmq doctor`` and ``status``,
the web page, ``config check`` and the broker's log take their words from here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cli.commands.advice import Advice, Severity
from cli.common import text
from eventstore.display import clock

_DAY_MS: Final = 86_400_000
_SOON_MS: Final = 30 * _DAY_MS
"""Time before the end from which it is a warning."""


class _Kind(NamedTuple):
    what: str
    effect: str
    """What happens from the end on."""
    reloaded: bool = True
    """Whether a reload reads the file again."""


_KINDS: Final = {
    "tls_cert": _Kind("the certificate", "clients refuse to connect to it"),
    "tls_client_ca": _Kind(
        "the authority of client certificates", "clients with a certificate of it are refused"
    ),
    "tls_crl": _Kind(
        "the certificate revocation list",
        "clients with a certificate of its issuer are refused",
    ),
    "jwt_keys": _Kind(
        "a key that verifies tokens",
        "its issuer no longer vouches for it; tokens signed with it are still accepted",
    ),
    "nats_ca": _Kind(
        "the authority of the NATS server's certificate",
        "the broker cannot connect to NATS",
        reloaded=False,
    ),
    "nats_cert": _Kind(
        "the broker's certificate for NATS", "the NATS server refuses the broker", reloaded=False
    ),
    "nats_creds": _Kind(
        "the credential for NATS", "the NATS server refuses the broker", reloaded=False
    ),
    "bridge_creds": _Kind(
        "the bridge's credential for NATS", "the NATS server refuses the bridge", reloaded=False
    ),
    "nats_tls_cert": _Kind("the certificate for NATS clients", "NATS clients refuse to connect"),
    "nats_tls_client_ca": _Kind(
        "the authority of NATS clients' certificates",
        "NATS clients with a certificate of it are refused",
    ),
    "cluster_tls_cert": _Kind(
        "the certificate of this node", "the other nodes of the cluster refuse it", reloaded=False
    ),
    "cluster_tls_ca": _Kind(
        "the authority of the nodes' certificates",
        "the nodes of the cluster refuse each other",
        reloaded=False,
    ),
}


def advise_on_certificates(statuses: Iterable[Mapping[str, Any]]) -> Iterator[Advice]:
    """Yield advice on what has expired or will; brokers of one machine that share a file once."""
    files: dict[tuple[str, str], tuple[Mapping[str, Any], list[str], int]] = {}
    for status in statuses:
        for row in status.get("certificates") or ():
            key = row["setting"], row["file"]
            _, listeners, _ = files.setdefault(key, (row, [], status["time_ms"]))
            if row["listener"] and row["listener"] not in listeners:
                listeners.append(row["listener"])
    for row, listeners, now_ms in files.values():
        advice = _advice(row, listeners, now_ms)
        if advice is not None:
            yield advice


def certificate_line(advice: Advice) -> str:
    """Return advice on a certificate as one line, without the command."""
    return f"{advice.subject} {advice.title}: {advice.evidence}; {advice.cause}"


def _advice(row: Mapping[str, Any], listeners: list[str], now_ms: int) -> Advice | None:
    kind = _KINDS[row["setting"]]
    state = _state(row, now_ms)
    if state is None:
        return None
    severity, title, evidence, when = state
    if (row.get("file_ends_ms") or 0) > row["ends_ms"]:
        remedy = f"the file has a newer one, until {clock(row['file_ends_ms'])}: "
    else:
        remedy = {
            "has expired": "it was not replaced in time: ",
            "is not valid yet": "it was replaced too early, or the clock is wrong: ",
        }.get(title, "")
        remedy += f"replace the file {text.escaped(row['file'], 300)} ({row['setting']}), and then "
    return Advice(
        "warning" if row["setting"] == "jwt_keys" else severity,
        f"{kind.what}{' of ' if listeners else ''}{', '.join(listeners)}",
        title,
        f"{text.escaped(row['name'], 200)}: {evidence}; {when}{kind.effect}",
        remedy + ("reload" if kind.reloaded else "restart the broker"),
        "foldmq reload" if kind.reloaded else "foldmq config check",
    )


def _state(row: Mapping[str, Any], now_ms: int) -> tuple[Severity, str, str, str] | None:
    """Return severity, title, evidence, and when the effect begins; None: nothing to report."""
    remaining_ms = row["ends_ms"] - now_ms
    if remaining_ms <= 0:
        evidence = f"it ended {text.duration(-remaining_ms)} ago, at {clock(row['ends_ms'])}"
        return "problem", "has expired", evidence, ""
    if row["begins_ms"] > now_ms:
        wait = text.duration(row["begins_ms"] - now_ms)
        evidence = f"it begins in {wait}, at {clock(row['begins_ms'])}"
        return "problem", "is not valid yet", evidence, "until then "
    soon = _SOON_MS
    if row["setting"] == "tls_crl":
        # Lists are published again long before their end: only a late one is worth a warning.
        soon = min(soon, row["lasts_ms"] // 4)
    if remaining_ms <= soon:
        evidence = f"it ends in {text.duration(remaining_ms)}, at {clock(row['ends_ms'])}"
        return "warning", "expires soon", evidence, "from then on "
    if row["first_ms"] <= now_ms:
        first = text.escaped(row["first_name"], 200)
        ended = text.duration(now_ms - row["first_ms"])
        evidence = f"others in the file are valid, but {first} ended {ended} ago"
        return "warning", "has expired in part", evidence, "for that one, "
    return None
