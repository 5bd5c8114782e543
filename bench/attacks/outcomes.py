"""Results of the attacks of abuse.py: a table, and the failed checks."""

from typing import Any

from bench.measuring.progress import number

_TURN_S = 0.02
_HEALTH_MS = 1_000
_LOGIN_P50_MS = 1_000
_LOGIN_MAX_MS = 2_000
_PHASES = ("before", "during", "after")
_COLUMNS = (
    "attack",
    "p50 before / during / after, ms",
    "p99 before / during / after, ms",
    "longest turn / its processor time, ms",
    "/healthz worst, ms",
    "PINGREQ worst, ms",
    "login p50 / worst, ms",
    "memory before / most / after, MiB",
)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return a table in Markdown, and below it the figures of each attack."""
    lines = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
    lines += [_row([name, *_cells(result)]) for name, result in results.items()]
    for name, result in results.items():
        lines += ["", f"{name}:", *(f"- {line}" for line in _details(result))]
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: dict[str, Any]) -> list[str]:
    during = result["during"]
    turn, work = result["turn_s"], result["work_s"]
    return [
        *(_three(result[phase][key] for phase in _PHASES) for key in ("p50_ms", "p99_ms")),
        " / ".join("not told" if one is None else number(1000 * one) for one in (turn, work)),
        number(during["healthz_max_ms"]),
        number(during["ping_max_ms"]),
        _three(during[key] for key in ("login_p50_ms", "login_max_ms")),
        _three(result[f"memory_{when}"] for when in ("before", "most", "after")),
    ]


def _three(values: Any) -> str:
    return " / ".join(map(number, values))


def _details(result: dict[str, Any]) -> list[str]:
    end, during, operator = result["end"], result["during"], result["operator"]
    lines = {
        "the attack": _pairs(_outcome(result["attack"])),
        "good clients": _pairs({what: end[what] for what in ("sent", "lost", "disconnects")}),
        "their PUBACK p99 before / during / after, ms": _three(
            result[phase]["ack_p99_ms"] for phase in _PHASES
        ),
        "probes without an answer": _pairs(
            {what: during[f"{what}_failed"] for what in ("healthz", "ping", "login")}
        ),
        "delay of the probing process itself, ms": number(during["own_late_max_ms"]),
        "open files before / most / after": _three(
            result[f"descriptors_{when}"] for when in ("before", "most", "after")
        ),
        "counters that grew": _pairs(operator["counters"]),
        "log": _pairs(operator["log"]),
    }
    if "latency_us" in result["attack"]:
        for what, kind in (("PUBACK", "ack_latency_us"), ("delivery", "latency_us")):
            latency = result["attack"][kind]
            lines[f"attackers' {what} p50 / p90 / p99 / worst, ms"] = _three(
                latency[part] / 1000 for part in ("p50", "p90", "p99", "max")
            )
    return [f"{what}: {said}" for what, said in lines.items()]


def _outcome(attack: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the attack; from mqttload's result only the relevant ones."""
    if "latency_us" not in attack:
        return {
            (f"{what} {kind}" if isinstance(count, dict) else what): each
            for what, count in attack.items()
            for kind, each in (count.items() if isinstance(count, dict) else [("", count)])
        }
    return {
        "acknowledged": attack["acked"],
        "delivered": attack["received"],
        "not delivered at the end": attack["lost"],
        "messages/s": attack["pub_per_s"],
        "deliveries/s": attack["recv_per_s"],
    }


def _pairs(counts: dict[str, Any]) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in counts.items()) or "none"


def faults(name: str, result: dict[str, Any]) -> list[str]:
    """Return the failed checks."""
    end, before, during = result["end"], result["before"], result["during"]
    found = [
        f"{what}: {end[what]}" for what in ("lost", "unacknowledged", "disconnects") if end[what]
    ]
    if before["p99_ms"] is None or during["p99_ms"] is None:
        found.append("nothing was delivered")
    elif during["p99_ms"] > 2 * before["p99_ms"]:
        found.append(f"p99 went from {before['p99_ms']} ms to {during['p99_ms']} ms")
    if name == "crowd" and result["memory_after"] > 1.2 * result["memory_before"]:
        found.append(
            f"memory went from {result['memory_before']:.0f} MiB "
            f"to {result['memory_after']:.0f} MiB"
        )
    # A busy host takes the processor away in the middle of a turn.
    turn = result["work_s"] if result["starved"] else result["turn_s"]
    if turn is not None and turn > _TURN_S:
        found.append(f"a turn of the event loop took {1000 * turn:.0f} ms")
    bounds = {
        "healthz_max_ms": _HEALTH_MS,
        "login_p50_ms": _LOGIN_P50_MS,
        "login_max_ms": _LOGIN_MAX_MS,
    }
    found += [
        f"{what} is {number(during[what])}, more than {bound}"
        for what, bound in bounds.items()
        if during[what] is None or during[what] > bound
    ]
    found += [
        f"{during[f'{what}_failed']} probes had no answer: {what}"
        for what in ("healthz", "ping", "login")
        if during[f"{what}_failed"]
    ]
    return found
